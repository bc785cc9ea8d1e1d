// The same source for the device and for the emulator.
#pragma once
#ifdef __CUDACC__
#include "device.cuh"
#else
#include "emulator.hpp"
#endif
#include "params.cuh"

// Every kernel's block, but for those of single warps.
#define THREADS 128
#define WARPS (THREADS / 32)

// Σ over a block's threads, the same bits in each of them. `room` has a number for each warp; a barrier stands before
// the next use of it.
template <uint32_t BLOCK_WARPS = WARPS>
__device__ __forceinline__ float block_sum(float value, float* room) {
  value = dev::warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = room[0];
  for (uint32_t warp = 1; warp < BLOCK_WARPS; warp++) sum += room[warp];
  return sum;
}

#define SILU 0
#define GELU_TANH 1
#define GELU_ERF 2
#define RELU 3
#define RELU_SQUARED 4
#define CLAMPED_SWISH 5
#define QUICK_GELU 6

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float activate(uint32_t activation, float x) {
  switch (activation) {
    case SILU: return x / (1.0f + expf(-x));
    // x/2 (1 + tanh y) = x / (1 + e^-2y), which loses no digits where tanh is near -1.
    case GELU_TANH: return x / (1.0f + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
    case GELU_ERF: return 0.5f * x * erfcf(-0.7071067811865476f * x);
    case QUICK_GELU: return x / (1.0f + expf(-1.702f * x));
    case RELU: return x < 0.0f ? 0.0f : x;
    case RELU_SQUARED: return x < 0.0f ? 0.0f : x * x;
    case CLAMPED_SWISH: {
      float held = x > 7.0f ? 7.0f : x;
      return held / (1.0f + expf(-1.702f * held));
    }
  }
  return x;
}

// What an activation is multiplied with.
__device__ __forceinline__ float gate_factor(uint32_t activation, float up) {
  if (activation != CLAMPED_SWISH) return up;
  return (up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up) + 1.0f;
}
