// Stored blocks as numbers, 32 of a row at a time: what GGML's formats, our affine ones and those of 8-bit floats mean
// (crates/kernels/src/quant).
// Types are numbered as in GGUF files; which there are, src/weights.rs says too.
#pragma once
#include "few_bits.cuh"

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
#define FP8 1106
#define FP8_G32 1107

// Bytes of a row, in words: loaded 16, 4 or 2 at a time, as their place allows. Which byte is asked for is known when this is
// compiled.
template <int COUNT>
struct Bytes {
  uint32_t words[(COUNT + 3) / 4];

  template <int ALIGNMENT>
  __device__ __forceinline__ static Bytes at(const uint8_t* from) {
    Bytes loaded;
    if (ALIGNMENT == 16) {
#pragma unroll
      for (int i = 0; i < COUNT / 16; i++) dev::load16(from + 16 * i, loaded.words + 4 * i);
    } else if (ALIGNMENT == 4) {
#pragma unroll
      for (int i = 0; i < COUNT / 4; i++) loaded.words[i] = dev::load4(from + 4 * i);
    } else if (ALIGNMENT == 2) {
#pragma unroll
      for (int i = 0; i < COUNT / 4; i++) loaded.words[i] = dev::load2(from + 4 * i) | dev::load2(from + 4 * i + 2) << 16;
      if (COUNT % 4 == 2) loaded.words[COUNT / 4] = dev::load2(from + COUNT - 2);
    } else {
#pragma unroll
      for (int i = 0; i < (COUNT + 3) / 4; i++) loaded.words[i] = 0;
#pragma unroll
      for (int i = 0; i < COUNT; i++) loaded.words[i / 4] |= (uint32_t)from[i] << (8 * (i % 4));
    }
    return loaded;
  }
  __device__ __forceinline__ int byte(int i) const { return words[i / 4] >> (8 * (i % 4)) & 255; }
  __device__ __forceinline__ uint16_t pair(int i) const { return (uint16_t)(words[i / 2] >> (16 * (i % 2))); }
  __device__ __forceinline__ float half(int i) const { return dev::from_half(pair(i)); }
};

__device__ __forceinline__ float half_at(const uint8_t* at) { return dev::from_half((uint16_t)dev::load2(at)); }
// Scale and minimum of group j of 8 of a block of Q4_K or Q5_K: six bits each behind two halves, all in its first 16 bytes.
__device__ __forceinline__ void scale_min(const uint8_t* block, int j, float* scale, float* min) {
  uint32_t head[4];
  dev::load16(block, head);
  const int shift = 8 * (j % 4);
  const uint32_t a = head[1] >> shift & 255, b = head[2] >> shift & 255, c = head[3] >> shift & 255;
  const uint32_t of = j < 4 ? a & 63 : (c & 15) | (a >> 6) << 4, less = j < 4 ? b & 63 : c >> 4 | (b >> 6) << 4;
  *scale = dev::from_half((uint16_t)head[0]) * (float)of;
  *min = dev::from_half((uint16_t)(head[0] >> 16)) * (float)less;
}

// An 8-bit float with 4 bits of exponent. What is no number has no bits of its own here: the scale says it (src/weights.rs).
__device__ __forceinline__ float e4m3(uint32_t byte) { return dev::from_bits((byte & 0x80) << 24 | (byte & 0x7f) << 20) * dev::from_bits((120u + 127u) << 23); }
// One without a sign.
__device__ __forceinline__ float ue4m3(uint8_t byte) { return byte == 0x7f ? 0.0f : e4m3(byte & 0x7f); }

__device__ __forceinline__ bool is_fp8(uint32_t type) { return type == FP8 || type == FP8_G32; }
// Blocks of 8-bit floats are a scale and a byte for each of 128 numbers, or of 32: where those of a group are in a row.
__device__ __forceinline__ uint32_t fp8_scale_at(uint32_t type, uint32_t group) { return type == FP8 ? group / 4 * 132 : group * 36; }
__device__ __forceinline__ uint32_t fp8_bytes_at(uint32_t type, uint32_t group) { return type == FP8 ? 32 * group + 4 + group / 4 * 4 : 36 * group + 4; }

// What 32 codes are multiplied with, and what is added to each of their halves then.
struct Scale {
  float d, m[2];
};

// Whether something is added to a type's codes.
__device__ __forceinline__ bool has_minimums(uint32_t type) {
  return type == Q4_1 || type == Q5_1 || type == Q2_K || type == Q4_K || type == Q5_K || type >= 1000;
}

// Codes 8 * quarter to 8 * quarter + 7 of 32, of group `group` of a row, and their scale; `count` of the 32 are there, the others
// become 0. `even` rows begin at multiples of 16 bytes. Scales of halves are in the codes, which are numbers that a half holds, but
// for those of Q6_K, which have 12 bits; floats are their own codes.
__device__ __forceinline__ void codes8(uint32_t type, const uint8_t* row, bool even, uint32_t group, uint32_t quarter, uint32_t count, float w[8], Scale& scale) {
  scale.d = 1.0f;
  scale.m[0] = scale.m[1] = 0.0f;
  const uint32_t first = 8 * quarter;
  // Where codes are nibbles, the second half of 32 is the upper ones of the same 16 bytes.
  const uint32_t nibbles = 8 * (quarter % 2), half = quarter / 2, upper = 4 * half;
  switch (type) {
    case F32:
      if (count == 32 && even) {
        const auto all = Bytes<32>::at<16>(row + 128 * (size_t)group + 4 * first);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = dev::from_bits(all.words[i]);
        return;
      }
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) w[i] = first + i < count ? reinterpret_cast<const float*>(row)[32 * group + first + i] : 0.0f;
      return;
    case F16:
      if (count == 32 && even) {
        const auto all = Bytes<16>::at<16>(row + 64 * (size_t)group + 2 * first);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = all.half(i);
        return;
      }
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) w[i] = first + i < count ? dev::from_half(reinterpret_cast<const uint16_t*>(row)[32 * group + first + i]) : 0.0f;
      return;
    case BF16:
      if (count == 32 && even) {
        const auto all = Bytes<16>::at<16>(row + 64 * (size_t)group + 2 * first);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = dev::from_bits(i % 2 == 0 ? all.words[i / 2] << 16 : all.words[i / 2] & 0xffff0000u);
        return;
      }
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) w[i] = first + i < count ? dev::from_bits((uint32_t) reinterpret_cast<const uint16_t*>(row)[32 * group + first + i] << 16) : 0.0f;
      return;
    case Q4_0: {
      const uint8_t* block = row + 18 * (size_t)group;
      const auto codes = Bytes<8>::at<2>(block + 2 + nibbles);
      scale.d = half_at(block);
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)((codes.byte(i) >> upper & 15) - 8);
      return;
    }
    case Q4_1: {
      const uint8_t* block = row + 20 * (size_t)group;
      const auto codes = Bytes<8>::at<4>(block + 4 + nibbles);
      scale.d = half_at(block);
      scale.m[0] = scale.m[1] = half_at(block + 2);
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)(codes.byte(i) >> upper & 15);
      return;
    }
    case Q5_0: {
      const uint8_t* block = row + 22 * (size_t)group;
      const auto codes = Bytes<8>::at<2>(block + 6 + nibbles);
      scale.d = half_at(block);
      const uint32_t fifth = dev::load2(block + 2 + 2 * half) >> nibbles;
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)((int)((codes.byte(i) >> upper & 15) | (fifth >> i & 1) << 4) - 16);
      return;
    }
    case Q5_1: {
      const uint8_t* block = row + 24 * (size_t)group;
      const auto codes = Bytes<8>::at<4>(block + 8 + nibbles);
      scale.d = half_at(block);
      scale.m[0] = scale.m[1] = half_at(block + 2);
      const uint32_t fifth = dev::load2(block + 4 + 2 * half) >> nibbles;
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)((codes.byte(i) >> upper & 15) | (fifth >> i & 1) << 4);
      return;
    }
    case Q8_0: {
      const uint8_t* block = row + 34 * (size_t)group;
      const auto codes = Bytes<8>::at<2>(block + 2 + first);
      scale.d = half_at(block);
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)(int8_t)codes.byte(i);
      return;
    }
    case Q2_K: {
      const uint8_t* block = row + 84 * (size_t)(group / 8);
      const int at = group % 8 * 32;
      // Two-bit codes: each half of a block has 32 bytes of four planes.
      const auto codes = Bytes<8>::at<4>(block + 16 + at / 128 * 32 + first);
      const int shift = 2 * (at / 32 % 4);
      const uint32_t levels = dev::load2(block + at / 16);
      const int of = levels >> (8 * half) & 15;
      const float least = -half_at(block + 82);
      scale.d = half_at(block + 80);
      scale.m[0] = least * (float)(levels >> 4 & 15);
      scale.m[1] = least * (float)(levels >> 12);
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)(of * (codes.byte(i) >> shift & 3));
      return;
    }
    case Q3_K: {
      const uint8_t* block = row + 110 * (size_t)(group / 8);
      const uint8_t* scales = block + 96;
      const int at = group % 8 * 32;
      const auto codes = Bytes<8>::at<2>(block + 32 + at / 128 * 32 + first), highs = Bytes<8>::at<2>(block + first);
      const int shift = 2 * (at / 32 % 4), j = at / 16 + half;
      const int of = (int)((scales[j % 8] >> (4 * (j / 8)) & 15) | (scales[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
      scale.d = half_at(block + 108);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int high = highs.byte(i) >> (at / 32) & 1;
        w[i] = (float)(of * (((codes.byte(i) >> shift & 3) | high << 2) - 4));
      }
      return;
    }
    case Q4_K: {
      const uint8_t* block = row + 144 * (size_t)(group / 8);
      const int j = group % 8;
      const auto codes = Bytes<8>::at<4>(block + 16 + j / 2 * 32 + first);
      float least;
      scale_min(block, j, &scale.d, &least);
      scale.m[0] = scale.m[1] = -least;
      const int shift = 4 * (j % 2);
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)(codes.byte(i) >> shift & 15);
      return;
    }
    case Q5_K: {
      const uint8_t* block = row + 176 * (size_t)(group / 8);
      const int j = group % 8;
      const auto codes = Bytes<8>::at<4>(block + 48 + j / 2 * 32 + first), highs = Bytes<8>::at<4>(block + 16 + first);
      float least;
      scale_min(block, j, &scale.d, &least);
      scale.m[0] = scale.m[1] = -least;
      const int shift = 4 * (j % 2);
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)((codes.byte(i) >> shift & 15) | (highs.byte(i) >> j & 1) << 4);
      return;
    }
    case Q6_K: {
      const uint8_t* block = row + 210 * (size_t)(group / 8);
      const int at = group % 8 * 32;
      const auto lows = Bytes<8>::at<2>(block + at / 128 * 64 + at % 64 + first), highs = Bytes<8>::at<2>(block + 128 + at / 128 * 32 + first);
      const int of = (int8_t)block[192 + at / 16 + half];
      scale.d = half_at(block + 208);
      const int low_shift = 4 * (at / 64 % 2), high_shift = 2 * (at / 32 % 4);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int code = (lows.byte(i) >> low_shift & 15) | (highs.byte(i) >> high_shift & 3) << 4;
        w[i] = (float)(of * (code - 32));
      }
      return;
    }
    case IQ4_NL: {
      const uint8_t* block = row + 18 * (size_t)group;
      const auto codes = Bytes<8>::at<2>(block + 2 + nibbles);
      scale.d = half_at(block);
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)IQ4_VALUES[codes.byte(i) >> upper & 15];
      return;
    }
    case IQ4_XS: {
      const uint8_t* block = row + 136 * (size_t)(group / 8);
      const int j = group % 8;
      const auto codes = Bytes<8>::at<4>(block + 8 + 16 * j + nibbles);
      const int of = (int)((block[4 + j / 2] >> (4 * (j % 2)) & 15) | (dev::load2(block + 2) >> (2 * j) & 3) << 4) - 32;
      scale.d = half_at(block) * (float)of;
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)IQ4_VALUES[codes.byte(i) >> upper & 15];
      return;
    }
    case MXFP4: {
      const uint8_t* block = row + 17 * (size_t)group;
      const auto codes = Bytes<8>::at<1>(block + 1 + nibbles);
      const uint32_t exponent = block[0];
      scale.d = dev::from_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = (float)FP4_VALUES[codes.byte(i) >> upper & 15];
      return;
    }
    case NVFP4: {
      const uint8_t* block = row + 36 * (size_t)(group / 2);
      // Each 16 numbers have 8 bytes: their first 8 the lower nibbles, the others the upper ones.
      const auto codes = Bytes<8>::at<4>(block + 4 + 16 * (group % 2) + 8 * half);
      const float of = ue4m3(block[group % 2 * 2 + half]);
      scale.d = 0.5f;
      const int shift = 4 * (quarter % 2);
#pragma unroll
      for (int i = 0; i < 8; i++) w[i] = of * (float)FP4_VALUES[codes.byte(i) >> shift & 15];
      return;
    }
    default: {
      // Affine: a thousand, ten times the bits of a code, and 5, 6 or 7 for groups of 32, 64 and 128.
      const uint32_t bits = (type - 1000) / 10, chunks = 1u << (type % 10 - 5);
      const uint8_t* block = row + (8 + 4 * bits * chunks) * (size_t)(group / chunks);
      scale.d = dev::from_bits(dev::load4(block));
      scale.m[0] = scale.m[1] = dev::from_bits(dev::load4(block + 4));
      // Eight codes are as many bytes as one has bits.
      const uint8_t* codes = block + 8 + 4 * bits * (group % chunks) + quarter * bits;
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) {
        const uint32_t bit = i * bits, shift = bit % 8;
        // A code reaches into the next byte only where its bits do.
        uint32_t code = codes[bit / 8] >> shift;
        if (shift + bits > 8) code |= (uint32_t)codes[bit / 8 + 1] << (8 - shift);
        w[i] = (float)(code & ((1u << bits) - 1));
      }
    }
  }
}

// Numbers 8 * quarter to 8 * quarter + 7 of group `group` of a row of 8-bit floats.
__device__ __forceinline__ void load_fp8(uint32_t type, const uint8_t* row, uint32_t group, uint32_t quarter, float w[8]) {
  const auto codes = Bytes<8>::at<4>(row + fp8_bytes_at(type, group) + 8 * quarter);
  const float d = dev::from_bits(dev::load4(row + fp8_scale_at(type, group)));
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = d * e4m3(codes.byte(i));
}

// The numbers that `codes8` has the codes of.
__device__ __forceinline__ void load8(uint32_t type, const uint8_t* row, bool even, uint32_t group, uint32_t quarter, uint32_t count, float w[8]) {
  Scale scale;
  codes8(type, row, even, group, quarter, count, w, scale);
  if (type == F32 || type == F16 || type == BF16) return;
  const float m = quarter < 2 ? scale.m[0] : scale.m[1];
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = has_minimums(type) ? fmaf(scale.d, w[i], m) : scale.d * w[i];
}

// The same of any type: those of few bits look some up in `codebooks`.
__device__ __forceinline__ void load_any8(uint32_t type, const uint8_t* row, const uint8_t* codebooks, bool even, uint32_t group, uint32_t quarter, uint32_t count, float w[8]) {
  if (has_few_bits(type)) load_few_bits(type, row, codebooks, group, quarter, w);
  else if (is_fp8(type)) load_fp8(type, row, group, quarter, w);
  else load8(type, row, even, group, quarter, count, w);
}

// Numbers 32 * group to 32 * group + 31 of a row, of types that have more bits and are no 8-bit floats.
__device__ __forceinline__ void load32(uint32_t type, const uint8_t* row, uint32_t group, uint32_t count, float w[32]) {
#pragma unroll
  for (uint32_t quarter = 0; quarter < 4; quarter++) load8(type, row, (size_t)row % 16 == 0, group, quarter, count, w + 8 * quarter);
}

// What `dev::multiply` is told of weights of a type.
__device__ __forceinline__ int pieces_of(uint32_t type) { return type == F16 || type == BF16 ? ONE_PIECE : type == F32 ? THREE_PIECES : TWO_PIECES; }

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
  if (there == 32 && (size_t)x % 16 == 0) {
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
      uint32_t words[4];
      dev::load16(reinterpret_cast<const uint8_t*>(x + 4 * i), words);
#pragma unroll
      for (uint32_t j = 0; j < 4; j++) sum = fmaf(w[4 * i + j], factor * dev::from_bits(words[j]), sum);
    }
    return sum;
  }
#pragma unroll
  for (uint32_t i = 0; i < 32; i++) sum = fmaf(w[i], i < there ? factor * x[i] : 0.0f, sum);
  return sum;
}
