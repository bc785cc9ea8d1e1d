// Norms of rows, or of parts of rows, by the kernel for them and by those that have written the row:
//   rms:   out = x / sqrt(mean(x²) + eps) * weight
//   layer: out = (x - mean) / sqrt(mean((x - mean)²) + eps) * weight + bias
// All that a thread has of it is loaded at once and stays in registers, but for what rows wider than 4,096 columns have beyond them, which
// is read again. Whole rows may be cut into pieces too; then they are in shared memory besides.
#pragma once
#include "pieces.cuh"

#define NORM_THREADS 256
#define NORM_HELD 16

// A part of a row, by a block of NORM_THREADS. Shared: a number for each warp, and the row where it is cut. Where x is FRESH, other
// blocks of the launch have just written it.
template <bool FRESH>
__device__ __forceinline__ void norm_part(const NormParams& p, uint32_t row, uint32_t part, float* room) {
  const auto load = [](const float* from) { return FRESH ? dev::others(from) : *from; };
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const size_t at = (size_t)row * p.x_stride + part * p.width;
  const float* x = p.x + at;
  const uint32_t first = p.repeats ? 0 : part * p.width, behind = NORM_HELD * NORM_THREADS + threadIdx.x;
  float held[NORM_HELD], weights[NORM_HELD];
#pragma unroll
  for (uint32_t turn = 0; turn < NORM_HELD; turn++) {
    const uint32_t i = turn * NORM_THREADS + threadIdx.x;
    held[turn] = i < p.width ? load(x + i) : 0.0f;
    weights[turn] = i < p.width ? p.weight[first + i] : 0.0f;
  }
  if (p.residual) {
    const float* added = x;
    float* __restrict__ sum = p.residual + at;
#pragma unroll
    for (uint32_t turn = 0; turn < NORM_HELD; turn++) {
      const uint32_t i = turn * NORM_THREADS + threadIdx.x;
      if (i < p.width) held[turn] += sum[i];
    }
#pragma unroll
    for (uint32_t turn = 0; turn < NORM_HELD; turn++) {
      const uint32_t i = turn * NORM_THREADS + threadIdx.x;
      if (i < p.width) sum[i] = held[turn];
    }
    for (uint32_t i = behind; i < p.width; i += NORM_THREADS) sum[i] += load(added + i);
    x = sum;  // each thread reads what it has written itself
  }
  float mean = 0.0f;
  if (p.centered) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t turn = 0; turn < NORM_HELD; turn++) sum += held[turn];
    for (uint32_t i = behind; i < p.width; i += NORM_THREADS) sum += load(x + i);
    mean = block_sum<NORM_THREADS / 32>(sum, room) / p.width;
  }
  float squares = 0.0f;
  const auto add = [&](float value) {
    const float from_mean = value - mean;
    squares = fmaf(from_mean, from_mean, squares);
  };
#pragma unroll
  for (uint32_t turn = 0; turn < NORM_HELD; turn++) {
    if (turn * NORM_THREADS + threadIdx.x < p.width) add(held[turn]);
  }
  for (uint32_t i = behind; i < p.width; i += NORM_THREADS) add(load(x + i));
  const float factor = 1.0f / sqrtf(block_sum<NORM_THREADS / 32>(squares, room) / p.width + p.eps);
  float* whole = room + NORM_THREADS / 32;
  float* __restrict__ out = p.out + (size_t)row * p.out_stride + part * p.width;
  const auto put = [&](uint32_t i, float value, float weight) {
    float normed = (value - mean) * factor * weight;
    if (p.bias) normed += p.bias[first + i];
    out[i] = normed;
    if (p.cut.pieces) whole[i] = normed;
  };
#pragma unroll
  for (uint32_t turn = 0; turn < NORM_HELD; turn++) {
    const uint32_t i = turn * NORM_THREADS + threadIdx.x;
    if (i < p.width) put(i, held[turn], weights[turn]);
  }
  for (uint32_t i = behind; i < p.width; i += NORM_THREADS) put(i, load(x + i), p.weight[first + i]);
  if (!p.cut.pieces) return;
  if (p.width + threadIdx.x < BLOCK_COLS * p.cut.blocks) whole[p.width + threadIdx.x] = 0.0f;
  __syncthreads();
#pragma unroll 1
  for (uint32_t block = threadIdx.x / 32; block < p.cut.blocks; block += NORM_THREADS / 32) cut_shared<!FRESH>(p.cut, row, block, whole + BLOCK_COLS * block);
}
