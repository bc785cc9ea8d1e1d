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
// c += a · b on the tensor cores: (16, 8) by (8, 8), of numbers with 11 significant bits; further bits are cut off.
__device__ __forceinline__ void mma(float c[4], const float a[4], const float b[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
// The first 11 significant bits, and the rest: none of what is infinite.
__device__ __forceinline__ float upper(float value) { return __uint_as_float(__float_as_uint(value) & 0xffffe000u); }
__device__ __forceinline__ float lower(float value) {
  const float rest = value - upper(value);
  return rest == rest ? rest : 0.0f;
}

// sums += x · wᵀ over 32 columns, of 16 rows and 8 outputs, by a warp. Lane l brings columns 8 * (l % 4) to that + 7 of rows l / 4
// and l / 4 + 8 and of output l / 4; it has the sums of those rows with outputs 2 * (l % 4) and that + 1. Numbers are two of 11 bits each,
// of which the product of both rests is left out; `is_short` weights have no rest.
__device__ __forceinline__ void multiply(const float above[8], const float below[8], const float w[8], bool is_short, float sums[4]) {
  float c[4] = {};
  __syncwarp();
#pragma unroll
  for (int s = 0; s < 8; s += 2) {
    const float a[4] = {above[s], below[s], above[s + 1], below[s + 1]};
    const float a_upper[4] = {upper(a[0]), upper(a[1]), upper(a[2]), upper(a[3])};
    const float a_lower[4] = {lower(a[0]), lower(a[1]), lower(a[2]), lower(a[3])};
    const float b_upper[2] = {upper(w[s]), upper(w[s + 1])};
    mma(c, a_upper, b_upper);
    mma(c, a_lower, b_upper);
    if (!is_short) {
      const float b_lower[2] = {lower(w[s]), lower(w[s + 1])};
      mma(c, a_upper, b_lower);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) sums[i] += c[i];
}

}  // namespace dev
