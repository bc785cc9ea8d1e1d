// Heads between projection and cache: norm, rotation (arxiv.org/abs/2104.09864), scale, and where they go.
// By the kernel for them, and by those that have written the row.
#pragma once
#include "kv.cuh"

__device__ __forceinline__ void norm_head(float* x, const float* weight, uint32_t count, float eps) {
  const uint32_t lane = threadIdx.x % 32;
  float squares = 0.0f;
  for (uint32_t i = lane; i < count; i += 32) squares = fmaf(x[i], x[i], squares);
  const float factor = 1.0f / sqrtf(dev::warp_sum(squares) / count + eps);
  for (uint32_t i = lane; i < count; i += 32) x[i] = x[i] * factor * (weight ? weight[i] : 1.0f);
  __syncwarp();
}

__device__ __forceinline__ uint32_t axis_of(const HeadParams& p, uint32_t pair) {
  if (p.sections_interleaved) return pair / 3 < p.sections[pair % 3] ? pair % 3 : 0;
  return (pair >= p.sections[0]) + (pair >= p.sections[0] + p.sections[1]);
}

__device__ __forceinline__ void turn_head(const HeadParams& p, float* x, uint32_t row) {
  const bool second = p.two_tables && p.batch.types[row] != 0;
  const float* inv_freq = p.inv_freq + (second ? p.pairs : 0);
  const float magnitude = second ? p.long_magnitude : p.magnitude;
  for (uint32_t pair = threadIdx.x % 32; pair < p.pairs; pair += 32) {
    const uint32_t first = p.interleaved ? 2 * pair : pair, other = p.interleaved ? first + 1 : pair + p.pairs;
    const uint32_t position = p.sections[0] == NONE ? p.batch.positions[row] : p.batch.axes[3 * row + axis_of(p, pair)];
    const float angle = (float)position * inv_freq[pair];
    const float sine = sinf(angle), cosine = cosf(angle), a = x[first], b = x[other];
    x[first] = magnitude * fmaf(a, cosine, -(b * sine));
    x[other] = magnitude * fmaf(a, sine, b * cosine);
  }
  __syncwarp();
}

// A head of a row, by a warp. Shared: the head. Where it is FRESH, other blocks of the launch have just written it.
template <bool FRESH>
__device__ __forceinline__ void turn_and_put(const HeadParams& p, uint32_t row, uint32_t head, float* x) {
  const uint32_t lane = threadIdx.x % 32;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const bool query = head < p.heads, value = head >= p.heads + p.kv_heads;
  const uint32_t index = query ? head : value ? head - p.heads - p.kv_heads : head - p.heads;
  const size_t at = (size_t)row * (query ? p.q_stride : p.kv_stride) + (size_t)index * p.head_dim;
  const float* from = (query ? p.q : value ? p.v : p.k) + at;
  for (uint32_t i = lane; i < p.head_dim; i += 32) x[i] = FRESH ? dev::others(from + i) : from[i];
  __syncwarp();
  if (value) {
    if (p.values_normed) norm_head(x, nullptr, p.head_dim, p.eps);
  } else {
    const float* weight = query ? p.q_weight : p.k_weight;
    const uint32_t normed = query ? p.q_normed : p.k_normed;
    if (normed > 0 && !p.norm_after) norm_head(x, weight, normed, p.eps);
    if (p.pairs > 0) turn_head(p, x + p.turned_first, row);
    if (normed > 0 && p.norm_after) norm_head(x, weight, normed, p.eps);
  }
  if (query) {
    float factor = 1.0f;
    if (p.scale_every > 0) {
      const uint64_t steps = ((uint64_t)p.batch.positions[row] + p.scale_offset) / p.scale_every;
      factor = (float)(1.0 + (double)p.scale_factor * log1p((double)steps));
    }
    for (uint32_t i = lane; i < p.head_dim; i += 32) p.q[at + i] = x[i] * factor;
  } else if (!p.key_plane) {
    for (uint32_t i = lane; !value && i < p.head_dim; i += 32) p.k[at + i] = x[i];
  } else {
    const uint32_t slot = p.batch.slots[row * p.batch.groups + p.group];
    uint8_t* plane = value ? p.value_plane : p.key_plane;
    kv_put(p.kv_type, plane + (size_t)slot * p.slot_bytes + index * kv_bytes(p.kv_type, p.head_dim), x, p.head_dim);
  }
}
