// Rows cut into pieces of 16 bits, which products on the tensor cores read (product.cuh has what they are): by a kernel of their own, or by
// the one that writes the rows.
#pragma once
#include "prelude.cuh"

// Columns that have one power of two; rows of a tile; and bytes of a piece of a group of a tile.
#define BLOCK_COLS 256
#define PRODUCT_ROWS 8
#define PIECE_BYTES 512

// Eight columns of a row, those behind the last as zeros. `whole` rows begin at multiples of 16 bytes. Where they are FRESH, other
// blocks of the launch have just written them.
template <bool FRESH = false>
__device__ __forceinline__ void load_columns(const float* row, uint32_t column, uint32_t cols, bool whole, float own[8]) {
  whole = whole && column + 8 <= cols;
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t words[4];
    if (whole && FRESH) dev::others16(reinterpret_cast<const uint8_t*>(row + column + 4 * i), words);
    if (whole && !FRESH) dev::load16(reinterpret_cast<const uint8_t*>(row + column + 4 * i), words);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      const float* one = row + column + 4 * i + j;
      own[4 * i + j] = whole ? dev::from_bits(words[j]) : column + 4 * i + j >= cols ? 0.0f : FRESH ? dev::others(one) : *one;
    }
  }
}

// Two halves for each number: of two numbers the first ones, and the others.
__device__ __forceinline__ void cut_in_two(float a, float b, uint32_t& upper, uint32_t& lower) {
  const uint16_t first[2] = {dev::to_half(a), dev::to_half(b)};
  const float rest[2] = {a - dev::from_half(first[0]), b - dev::from_half(first[1])};
  upper = first[0] | (uint32_t)first[1] << 16;
  // Nothing is left of what is infinite.
  lower = dev::to_half(rest[0] == rest[0] ? rest[0] : 0.0f) | (uint32_t)dev::to_half(rest[1] == rest[1] ? rest[1] : 0.0f) << 16;
}

// The same of a warp's numbers, of which a lane has eight, under the power of two that brings the largest of all to [2^14, 2^15). Returns what
// undoes it.
__device__ __forceinline__ float cut_by_power(const float own[8], uint32_t upper[4], uint32_t lower[4]) {
  int most = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    const int size = (int)(dev::to_bits(own[i]) & 0x7fffffffu);
    most = size > most ? size : most;
  }
  most = dev::warp_max(most) >> 23;
  most = most < 15 ? 15 : most;
  const float factor = dev::from_bits((uint32_t)(268 - most) << 23);
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) cut_in_two(own[2 * i] * factor, own[2 * i + 1] * factor, upper[i], lower[i]);
  return dev::from_bits((uint32_t)(most - 14) << 23);
}

// The four words that a lane of a product's brings: side by side, or word by word, so that eight rows' first ones lie behind each other; in
// either form, where a kernel is told it.
template <bool EITHER>
__device__ __forceinline__ void put_words(const PiecesTo& to, uint8_t* piece, uint32_t lane, const uint32_t words[4]) {
  if (EITHER && to.form & BY_WORDS) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) reinterpret_cast<uint32_t*>(piece)[32 * i + lane] = words[i];
  } else {
    dev::store16(piece + 16 * lane, words);
  }
}

// Cuts a block of columns of row `at` of the tiles, of which a lane has columns 8 * lane to that + 7.
template <bool EITHER = true>
__device__ __forceinline__ void cut_block(const PiecesTo& to, uint32_t at, uint32_t block, float own[8]) {
  const uint32_t lane = threadIdx.x % 32, count = to.form & IN_BF16S ? 3 : 2;
  const uint32_t tile = at / PRODUCT_ROWS, row = at % PRODUCT_ROWS, group = 8 * block + lane / 4;
  uint8_t* pieces = to.pieces + ((size_t)tile * 8 * to.blocks + group) * count * PIECE_BYTES;
  if (to.form & IN_BF16S) {
#pragma unroll
    for (uint32_t piece = 0; piece < 3; piece++) {
      uint32_t words[4];
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) {
        // Cut off, so that three have all that there is; what is no number stays none, and nothing is left of what is infinite.
        const uint32_t bits = dev::to_bits(own[i]), upper = own[i] != own[i] ? 0x7fc0u : bits >> 16;
        words[i / 2] = i % 2 == 0 ? upper : words[i / 2] | upper << 16;
        const float rest = own[i] - dev::from_bits(upper << 16);
        own[i] = rest == rest ? rest : 0.0f;
      }
      put_words<EITHER>(to, pieces + piece * PIECE_BYTES, row * 4 + lane % 4, words);
    }
    return;
  }
  uint32_t upper[4], lower[4];
  const float inverse = cut_by_power(own, upper, lower);
  put_words<EITHER>(to, pieces, row * 4 + lane % 4, upper);
  put_words<EITHER>(to, pieces + PIECE_BYTES, row * 4 + lane % 4, lower);
  if (lane == 0) to.inverses[((size_t)tile * to.blocks + block) * PRODUCT_ROWS + row] = inverse;
  // Of 16 columns, which two lanes have.
  float sum = ((own[0] + own[1]) + (own[2] + own[3])) + ((own[4] + own[5]) + (own[6] + own[7]));
  sum += dev::from_beside(sum);
  if (lane % 2 == 0) to.sums[(((size_t)tile * 8 * to.blocks + group) * 2 + lane / 2 % 2) * PRODUCT_ROWS + row] = sum;
}

// A block of columns in shared memory, at a multiple of 16 bytes, those behind the last as zeros.
template <bool EITHER = true>
__device__ __forceinline__ void cut_shared(const PiecesTo& to, uint32_t at, uint32_t block, const float* columns) {
  uint32_t words[2][4];
  float own[8];
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) dev::shared16(reinterpret_cast<const unsigned char*>(columns + 8 * (threadIdx.x % 32) + 4 * i), words[i]);
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) own[i] = dev::from_bits(words[i / 4][i % 4]);
  cut_block<EITHER>(to, at, block, own);
}
