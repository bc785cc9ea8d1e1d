// Norms of rows, or of parts of rows:
//   rms:   out = x / sqrt(mean(x²) + eps) * weight
//   layer: out = (x - mean) / sqrt(mean((x - mean)²) + eps) * weight + bias
// A block has one part of one row: (rows, parts).
#include "prelude.cuh"

KERNEL(norm, NormParams, THREADS) {
  SHARED(float, room);
  const uint32_t row = blockIdx.x, part = blockIdx.y;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const size_t at = (size_t)row * p.x_stride + part * p.width;
  const float* x = p.x + at;
  // Loads of several turns of a loop are on their way at once.
  if (p.residual) {
    const float* __restrict__ added = x;
    float* __restrict__ sum = p.residual + at;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < p.width; i += THREADS) sum[i] += added[i];
    x = sum;  // each thread reads what it has written itself
  }
  float mean = 0.0f;
  if (p.centered) {
    float sum = 0.0f;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < p.width; i += THREADS) sum += x[i];
    mean = block_sum(sum, room) / p.width;
  }
  float squares = 0.0f;
#pragma unroll 8
  for (uint32_t i = threadIdx.x; i < p.width; i += THREADS) {
    const float from_mean = x[i] - mean;
    squares = fmaf(from_mean, from_mean, squares);
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, room) / p.width + p.eps);
  float* __restrict__ out = p.out + (size_t)row * p.out_stride + part * p.width;
  const uint32_t first = p.repeats ? 0 : part * p.width;
#pragma unroll 8
  for (uint32_t i = threadIdx.x; i < p.width; i += THREADS) {
    const float normed = (x[i] - mean) * factor * p.weight[first + i];
    out[i] = p.bias ? normed + p.bias[first + i] : normed;
  }
}
