// Stored blocks as numbers, 32 of a row at a time: what GGML's formats and our affine ones mean (crates/kernels/src/quant).
// Types are numbered as in GGUF files; which there are, src/matrix.rs says too.
#pragma once
#include "prelude.cuh"

TABLE(int8_t, IQ4_VALUES, 16) = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
TABLE(int8_t, FP4_VALUES, 16) = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#define F32 0
#define F16 1
#define Q4_0 2
#define Q4_1 3
#define Q5_0 6
#define Q5_1 7
#define Q8_0 8
#define Q2_K 10
#define Q3_K 11
#define Q4_K 12
#define Q5_K 13
#define Q6_K 14
#define IQ4_NL 20
#define IQ4_XS 23
#define BF16 30
#define MXFP4 39
#define NVFP4 40

__device__ __forceinline__ uint32_t word16(const uint8_t* at) { return at[0] | at[1] << 8; }
__device__ __forceinline__ uint32_t word32(const uint8_t* at) { return word16(at) | word16(at + 2) << 16; }
__device__ __forceinline__ float half_at(const uint8_t* at) { return dev::from_half((uint16_t)word16(at)); }
// Code i of 32 in 16 bytes.
__device__ __forceinline__ int nibble(const uint8_t* codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }
// Two-bit code i of a block of 256: each half has 32 bytes of four planes.
__device__ __forceinline__ int two_bits(const uint8_t* codes, int i) { return codes[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3; }
// Six bits each of scale and minimum of group j of 8, in 12 bytes.
__device__ __forceinline__ void scale_min(const uint8_t* scales, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = scales[j] & 63;
    *min = scales[j + 4] & 63;
  } else {
    *scale = (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
    *min = (scales[j + 4] >> 4) | (scales[j] >> 6) << 4;
  }
}

// An 8-bit float with 4 bits of exponent and no sign.
__device__ __forceinline__ float ue4m3(uint8_t byte) {
  return byte == 0x7f ? 0.0f : dev::from_bits((uint32_t)(byte & 0x7f) << 20) * dev::from_bits((120u + 127u) << 23);
}

// Numbers 32 * group to 32 * group + 31 of a row; `count` of them are there, the others become 0.
__device__ __forceinline__ void load32(uint32_t type, const uint8_t* row, uint32_t group, uint32_t count, float w[32]) {
  switch (type) {
    case F32:
#pragma unroll
      for (uint32_t i = 0; i < 32; i++) w[i] = i < count ? reinterpret_cast<const float*>(row)[32 * group + i] : 0.0f;
      return;
    case F16:
#pragma unroll
      for (uint32_t i = 0; i < 32; i++) w[i] = i < count ? dev::from_half(reinterpret_cast<const uint16_t*>(row)[32 * group + i]) : 0.0f;
      return;
    case BF16:
#pragma unroll
      for (uint32_t i = 0; i < 32; i++) w[i] = i < count ? dev::from_bits((uint32_t) reinterpret_cast<const uint16_t*>(row)[32 * group + i] << 16) : 0.0f;
      return;
    case Q4_0: {
      const uint8_t* block = row + 18 * group;
      const float d = half_at(block);
#pragma unroll
      for (int i = 0; i < 32; i++) w[i] = d * (float)(nibble(block + 2, i) - 8);
      return;
    }
    case Q4_1: {
      const uint8_t* block = row + 20 * group;
      const float d = half_at(block), m = half_at(block + 2);
#pragma unroll
      for (int i = 0; i < 32; i++) w[i] = fmaf(d, (float)nibble(block + 4, i), m);
      return;
    }
    case Q5_0: {
      const uint8_t* block = row + 22 * group;
      const float d = half_at(block);
      const uint32_t fifth = word32(block + 2);
#pragma unroll
      for (int i = 0; i < 32; i++) w[i] = d * (float)((int)(nibble(block + 6, i) | (fifth >> i & 1) << 4) - 16);
      return;
    }
    case Q5_1: {
      const uint8_t* block = row + 24 * group;
      const float d = half_at(block), m = half_at(block + 2);
      const uint32_t fifth = word32(block + 4);
#pragma unroll
      for (int i = 0; i < 32; i++) w[i] = fmaf(d, (float)(nibble(block + 8, i) | (fifth >> i & 1) << 4), m);
      return;
    }
    case Q8_0: {
      const uint8_t* block = row + 34 * group;
      const float d = half_at(block);
#pragma unroll
      for (int i = 0; i < 32; i++) w[i] = d * (float)(int8_t)block[2 + i];
      return;
    }
    case Q2_K: {
      const uint8_t* block = row + 84 * (size_t)(group / 8);
      const int at = group % 8 * 32;
      const float d = half_at(block + 80), dmin = half_at(block + 82);
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const uint8_t levels = block[(at + i) / 16];
        w[i] = fmaf(d * (float)(levels & 15), (float)two_bits(block + 16, at + i), -(dmin * (float)(levels >> 4)));
      }
      return;
    }
    case Q3_K: {
      const uint8_t* block = row + 110 * (size_t)(group / 8);
      const uint8_t* scales = block + 96;
      const int at = group % 8 * 32;
      const float d = half_at(block + 108);
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const int j = (at + i) / 16;
        const int scale = (int)((scales[j % 8] >> (4 * (j / 8)) & 15) | (scales[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
        const int high = block[i] >> (at / 32) & 1;
        w[i] = d * (float)scale * (float)((two_bits(block + 32, at + i) | high << 2) - 4);
      }
      return;
    }
    case Q4_K: {
      const uint8_t* block = row + 144 * (size_t)(group / 8);
      const int j = group % 8;
      int scale, min;
      scale_min(block + 4, j, &scale, &min);
      const float d = half_at(block) * (float)scale, m = half_at(block + 2) * (float)min;
#pragma unroll
      for (int i = 0; i < 32; i++) w[i] = fmaf(d, (float)(block[16 + j / 2 * 32 + i] >> (4 * (j % 2)) & 15), -m);
      return;
    }
    case Q5_K: {
      const uint8_t* block = row + 176 * (size_t)(group / 8);
      const int j = group % 8;
      int scale, min;
      scale_min(block + 4, j, &scale, &min);
      const float d = half_at(block) * (float)scale, m = half_at(block + 2) * (float)min;
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const int low = block[48 + j / 2 * 32 + i] >> (4 * (j % 2)) & 15;
        w[i] = fmaf(d, (float)(low | (block[16 + i] >> j & 1) << 4), -m);
      }
      return;
    }
    case Q6_K: {
      const uint8_t* block = row + 210 * (size_t)(group / 8);
      const int at = group % 8 * 32;
      const float d = half_at(block + 208);
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const int k = at + i;
        const int low = block[k / 128 * 64 + k % 64] >> (4 * (k / 64 % 2)) & 15;
        w[i] = d * (float)(int8_t)block[192 + k / 16] * (float)((low | two_bits(block + 128, k) << 4) - 32);
      }
      return;
    }
    case IQ4_NL: {
      const uint8_t* block = row + 18 * group;
      const float d = half_at(block);
#pragma unroll
      for (int i = 0; i < 32; i++) w[i] = d * (float)IQ4_VALUES[nibble(block + 2, i)];
      return;
    }
    case IQ4_XS: {
      const uint8_t* block = row + 136 * (size_t)(group / 8);
      const int j = group % 8;
      const int scale = (int)((block[4 + j / 2] >> (4 * (j % 2)) & 15) | (word16(block + 2) >> (2 * j) & 3) << 4) - 32;
      const float d = half_at(block) * (float)scale;
#pragma unroll
      for (int i = 0; i < 32; i++) w[i] = d * (float)IQ4_VALUES[nibble(block + 8 + 16 * j, i)];
      return;
    }
    case MXFP4: {
      const uint8_t* block = row + 17 * group;
      const uint32_t exponent = block[0];
      const float d = dev::from_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
#pragma unroll
      for (int i = 0; i < 32; i++) w[i] = d * (float)FP4_VALUES[nibble(block + 1, i)];
      return;
    }
    case NVFP4: {
      const uint8_t* block = row + 36 * (size_t)(group / 2);
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const int run = group % 2 * 2 + i / 16, code = i % 16;
        const uint8_t byte = block[4 + 8 * run + code % 8];
        w[i] = 0.5f * ue4m3(block[run]) * (float)FP4_VALUES[code < 8 ? byte & 15 : byte >> 4];
      }
      return;
    }
    default: {
      // Affine: a thousand, ten times the bits of a code, and 5, 6 or 7 for groups of 32, 64 and 128.
      const uint32_t bits = (type - 1000) / 10, chunks = 1u << (type % 10 - 5);
      const uint8_t* block = row + (8 + 4 * bits * chunks) * (size_t)(group / chunks);
      const float scale = dev::from_bits(word32(block)), bias = dev::from_bits(word32(block + 4));
      const uint8_t* codes = block + 8 + 4 * bits * (group % chunks);
#pragma unroll
      for (uint32_t i = 0; i < 32; i++) {
        const uint32_t bit = i * bits, shift = bit % 8;
        // A code reaches into the next byte only where its bits do.
        uint32_t code = codes[bit / 8] >> shift;
        if (shift + bits > 8) code |= (uint32_t)codes[bit / 8 + 1] << (8 - shift);
        w[i] = fmaf(scale, (float)(code & ((1u << bits) - 1)), bias);
      }
    }
  }
}

// The part of a stack that has a row.
__device__ __forceinline__ const Part& part_of(const Stack& stack, uint32_t row) {
  uint32_t at = 0;
  while (at + 1 < stack.count && row >= stack.parts[at + 1].row_first) at++;
  return stack.parts[at];
}

__device__ __forceinline__ const uint8_t* row_of(const Part& part, uint32_t row) {
  return part.bytes + (size_t)(row - part.row_first) * part.row_bytes;
}

// sum + w · (factor * x), of `there` numbers, in their order.
__device__ __forceinline__ float dot32(const float w[32], const float* x, uint32_t there, float factor, float sum) {
#pragma unroll
  for (uint32_t i = 0; i < 32; i++) sum = fmaf(w[i], i < there ? factor * x[i] : 0.0f, sum);
  return sum;
}
