// What kernels of attention on the tensor cores share: tiles of queries that read the same keys, their pieces, and what makes weights of
// products. They are written so that no compiler may round them differently in one kernel than in another.
#pragma once
#include "attention.cuh"
#include "pieces.cuh"

#define BLOCKS_OF_KEYS (SPAN / 32)
#define WEIGHT_FACTOR 16384.0f

// Some rows of a sequence, from one of the step's on.
struct Rows {
  uint32_t sequence, first, count;
};

// The rows of a tile. Tiles of a sequence are numbered from its first row's tile and its own number on, so that there are enough numbers
// for each; those of sequences of one row, and of such alone that have few, are the sequences'.
__device__ __forceinline__ Rows find_rows(const AttentionParams& p, uint32_t index, uint32_t each, bool few) {
  const uint32_t sequences = p.batch.counts[COUNT_SEQUENCES];
  const bool own = (few && p.short_rows) || p.batch.counts[COUNT_ROWS] == sequences;
  uint32_t low = own ? index : 0;
  if (low >= sequences) return {0, 0, 0};
  for (uint32_t high = own ? 0 : sequences; low + 1 < high;) {
    const uint32_t middle = (low + high) / 2;
    if (p.batch.spans[4 * middle] / each + middle <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const uint32_t first = p.batch.spans[4 * low], rows = p.batch.spans[4 * low + 1];
  const uint32_t skipped = own ? 0 : (index - (first / each + low)) * each;
  if (skipped >= rows || (p.short_rows && few != (rows <= p.short_rows))) return {0, 0, 0};
  return {low, first + skipped, rows - skipped < each ? rows - skipped : each};
}

// A query's pieces, or none's, by a warp of which each lane has eight columns. Returns what undoes the power of two, times the scale.
__device__ __forceinline__ float cut_query(const AttentionParams& p, bool there, uint32_t row, uint32_t head, uint32_t upper[4], uint32_t lower[4]) {
  const uint32_t lane = threadIdx.x % 32;
  const float* from = p.q + (size_t)row * p.q_stride + head * p.head_dim + 8 * lane;
  uint32_t words[2][4] = {};
  if (there && 8 * lane < p.head_dim) {
    if ((size_t)from % 16 == 0) {
      dev::load16(reinterpret_cast<const uint8_t*>(from), words[0]);
      dev::load16(reinterpret_cast<const uint8_t*>(from + 4), words[1]);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) words[i / 4][i % 4] = dev::to_bits(from[i]);
    }
  }
  float own[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) own[i] = dev::from_bits(words[i / 4][i % 4]);
  return p.scale * cut_by_power(own, upper, lower);
}

// A score is its product times what undoes the query's power of two; then, where there are such, it is held below a cap, and less the farther
// a key is.
__device__ __forceinline__ float capped(const AttentionParams& p, float score) { return dev::times(p.softcap, tanhf(score / p.softcap)); }
__device__ __forceinline__ float sloped(const AttentionParams& p, uint32_t head, uint32_t distance, float score) {
  return dev::plus(score, -dev::times(p.slopes[head], (float)distance));
}
