// What kernels name, on the device: the same names as the emulator's (crates/cuda-emulator/cpp/emulator.hpp). Every
// instruction that is not plain C++ stands here. No header but the compiler's own is needed.
#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#define TABLE(type, name, count) __device__ const type name[count]
#define SHARED(type, name) extern __shared__ __align__(16) unsigned char shared_bytes[]; type* name = reinterpret_cast<type*>(shared_bytes)
#define KERNEL(name, Params, threads) \
  extern "C" __global__ void __launch_bounds__(threads) kernel_##name(const __grid_constant__ Params p)
// One of which so many blocks must fit a multiprocessor: it may have the registers that leaves.
#define WIDE_KERNEL(name, Params, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) kernel_##name(const __grid_constant__ Params p)

namespace dev {

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value = value + __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
  return value;
}
__device__ __forceinline__ int warp_max(int value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    int other = __shfl_xor_sync(0xffffffffu, value, apart);
    value = value > other ? value : other;
  }
  return value;
}
__device__ __forceinline__ int warp_min(int value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    int other = __shfl_xor_sync(0xffffffffu, value, apart);
    value = value < other ? value : other;
  }
  return value;
}
// Memory that nothing writes while the kernel runs, at a multiple of so many bytes.
__device__ __forceinline__ uint32_t load2(const uint8_t* from) { return __ldg(reinterpret_cast<const uint16_t*>(from)); }
__device__ __forceinline__ uint32_t load4(const uint8_t* from) { return __ldg(reinterpret_cast<const uint32_t*>(from)); }
__device__ __forceinline__ void load16(const uint8_t* from, uint32_t to[4]) {
  const uint4 words = __ldg(reinterpret_cast<const uint4*>(from));
  to[0] = words.x;
  to[1] = words.y;
  to[2] = words.z;
  to[3] = words.w;
}
__device__ __forceinline__ float from_bits(uint32_t word) { return __uint_as_float(word); }
__device__ __forceinline__ float from_half(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
__device__ __forceinline__ uint16_t to_half(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

}  // namespace dev
