// Activations of one half of a row times the other: by the kernel for them, and by those that have written the row.
#pragma once
#include "pieces.cuh"

// As it stands, so that no sum of what is cut takes in a product that was not rounded.
__device__ __forceinline__ float gated(const GateParams& p, float gate, float up) { return dev::times(activate(p.activation, gate), gate_factor(p.activation, up)); }

// A block of columns of a row, by a warp; in pieces too where it is cut. Where they are FRESH, other blocks of the launch have just
// written both halves.
template <bool FRESH>
__device__ __forceinline__ void gate_block(const GateParams& p, uint32_t row, uint32_t block) {
  const float* both = p.both + (size_t)row * 2 * p.width;
  float* hidden = p.hidden + (size_t)row * p.width;
  const uint32_t column = BLOCK_COLS * block + 8 * (threadIdx.x % 32);
  const bool whole = p.width % 4 == 0;
  float own[8], ups[8];
  load_columns<FRESH>(both, column, p.width, whole, own);
  load_columns<FRESH>(both + p.width, column, p.width, whole, ups);
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) own[i] = column + i < p.width ? gated(p, own[i], ups[i]) : 0.0f;
  if (whole && column + 8 <= p.width) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      const uint32_t words[4] = {dev::to_bits(own[4 * i]), dev::to_bits(own[4 * i + 1]), dev::to_bits(own[4 * i + 2]), dev::to_bits(own[4 * i + 3])};
      dev::store16(reinterpret_cast<uint8_t*>(hidden + column + 4 * i), words);
    }
  } else {
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
      if (column + i < p.width) hidden[column + i] = own[i];
    }
  }
  if (p.cut.pieces) cut_block<!FRESH>(p.cut, row, block, own);
}
