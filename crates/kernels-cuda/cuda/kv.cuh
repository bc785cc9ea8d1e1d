// The paged cache's numbers: halves, GGML's Q8_0, 32 bytes behind one half, or 8-bit floats (E4M3). A slot has a token's heads, each
// `head_dim` numbers.
#pragma once
#include "prelude.cuh"

#define KV_F16 0
#define KV_Q8_0 1
#define KV_FP8 2

__device__ __forceinline__ size_t kv_bytes(uint32_t type, uint32_t elements) {
  return type == KV_F16 ? 2 * (size_t)elements : type == KV_FP8 ? (size_t)elements : (size_t)elements / 32 * 34;
}

// Two 8-bit floats, in the upper bytes of two halves, as such: each has the bits of a half but for the exponent's bias.
__device__ __forceinline__ uint32_t fp8_pair(uint32_t floats) {
  return dev::multiply_add_halves((floats >> 1 & 0x3f803f80u) | (floats & 0x80008000u), 0x5c005c00u, 0);
}
// The nearest of them, the even one of two; of what is out of range the largest.
__device__ __forceinline__ uint8_t to_fp8(float x) {
  const float size = fabsf(x) < 448.0f ? fabsf(x) : 448.0f;
  // Subnormals are multiples of 2^-9.
  const uint32_t bits = dev::to_bits(size), subnormal = dev::to_bits(dev::plus(size * 512.0f, 8388608.0f)) & 0xff;
  const uint32_t normal = ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120 << 3);
  return (uint8_t)((size < 0.015625f ? subnormal : normal) | (dev::to_bits(x) >> 24 & 0x80));
}

// Four numbers of a head from `i` on, a multiple of four, of which those from `count` on stay unknown.
__device__ __forceinline__ void kv_four(uint32_t type, const uint8_t* head, uint32_t i, uint32_t count, float numbers[4]) {
  if (type == KV_F16) {
#pragma unroll
    for (uint32_t n = 0; n < 4; n++) {
      if (i + n < count) numbers[n] = dev::from_half((uint16_t)dev::load2(head + 2 * (i + n)));
    }
    return;
  }
  if (type == KV_FP8) {
#pragma unroll
    for (uint32_t n = 0; n < 4; n++) {
      if (i + n < count) numbers[n] = dev::from_half((uint16_t)fp8_pair((uint32_t)head[i + n] << 8));
    }
    return;
  }
  const uint8_t* block = head + i / 32 * 34;
  const float scale = dev::from_half((uint16_t)dev::load2(block));
  const uint32_t codes = dev::load2(block + 2 + i % 32) | dev::load2(block + 4 + i % 32) << 16;
#pragma unroll
  for (uint32_t n = 0; n < 4; n++) numbers[n] = scale * (float)(int8_t)(codes >> (8 * n));
}

// A warp writes a head from shared memory.
__device__ __forceinline__ void kv_put(uint32_t type, uint8_t* head, const float* x, uint32_t count) {
  const uint32_t lane = threadIdx.x % 32;
  if (type == KV_F16) {
    for (uint32_t i = lane; i < count; i += 32) reinterpret_cast<uint16_t*>(head)[i] = dev::to_half(x[i]);
    return;
  }
  if (type == KV_FP8) {
    for (uint32_t i = lane; i < count; i += 32) head[i] = to_fp8(x[i]);
    return;
  }
  for (uint32_t first = 0; first < count; first += 32) {
    uint8_t* block = head + first / 32 * 34;
    const float d = dev::warp_max(fabsf(x[first + lane])) / 127.0f;
    const float inverse = d == 0.0f ? 0.0f : 1.0f / d;
    block[2 + lane] = (uint8_t)(int8_t)roundf(x[first + lane] * inverse);
    if (lane == 0) *reinterpret_cast<uint16_t*>(block) = dev::to_half(d);
  }
}

// The slot of one key of a sequence in a layer group.
__device__ __forceinline__ uint32_t slot_of(const Batch& batch, const uint32_t* table, uint32_t key) {
  return batch.blocks[table[0] + key / 16 - table[1]] * 16 + key % 16;
}
