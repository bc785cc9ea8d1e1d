// Blocks of the types of 1 to 3 bits, eight numbers of a row at a time: what iq.rs, ternary.rs and signs.rs in crates/kernels/src/quant mean.
// All come out alike, so that one loop serves them all: whole numbers in bytes, one factor of theirs and one scale. The whole numbers times
// their factor are below 2,048, which halves hold.
#pragma once
#include "prelude.cuh"

#define IQ2_XXS 16
#define IQ2_XS 17
#define IQ3_XXS 18
#define IQ1_S 19
#define IQ3_S 21
#define IQ2_S 22
#define IQ1_M 29
#define TQ1_0 34
#define TQ2_0 35
#define Q1_0 41
#define Q2_0 42

// Where codebooks begin among all of them, in bytes (src/codebooks.rs): of 2,048, 256, 512 and 1,024 entries of eight bytes, and of 256 and
// 512 of four.
#define IQ1_CODEBOOK 0
#define IQ2_XXS_CODEBOOK 16384
#define IQ2_XS_CODEBOOK 18432
#define IQ2_S_CODEBOOK 22528
#define IQ3_XXS_CODEBOOK 30720
#define IQ3_S_CODEBOOK 31744

__device__ __forceinline__ bool has_few_bits(uint32_t type) {
  constexpr uint64_t TYPES = 1ull << IQ2_XXS | 1ull << IQ2_XS | 1ull << IQ3_XXS | 1ull << IQ1_S | 1ull << IQ3_S | 1ull << IQ2_S | 1ull << IQ1_M | 1ull << TQ1_0 |
                             1ull << TQ2_0 | 1ull << Q1_0 | 1ull << Q2_0;
  return type < 64 && (TYPES >> type & 1) != 0;
}

// Number i is d * factor * (byte i - less).
struct FewBits {
  uint32_t bytes[2], less, factor;
  float d;

  __device__ __forceinline__ int code(int i) const { return (int)factor * ((int)(bytes[i / 4] >> (8 * (i % 4)) & 255) - (int)less); }
};

// The lowest four bits, one to a byte.
__device__ __forceinline__ uint32_t spread(uint32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }
// Eight signs of which seven are stored: the number of negative ones is even.
__device__ __forceinline__ uint32_t even_signs(uint32_t seven) {
  uint32_t odd = seven ^ seven >> 4;
  odd ^= odd >> 2;
  odd ^= odd >> 1;
  return seven | (odd & 1) << 7;
}

__device__ __forceinline__ uint32_t pair_of(uint32_t low, uint32_t high) { return low | high << 16; }

// What a lane loads of numbers 8 * quarter to 8 * quarter + 7 of group `group` of a row, as it is stored, so that nothing waits for it before it
// is read. Rows begin at multiples of two bytes, those of IQ1_M at multiples of eight.
struct StoredFewBits {
  uint32_t codes, signs, highs, scales, d;

  __device__ __forceinline__ void load(uint32_t type, const uint8_t* row, uint32_t group, uint32_t quarter) {
    quarter = dev::not_before(quarter);
    const uint32_t j = group % 8, eight = 4 * j + quarter;
    codes = signs = highs = scales = d = 0;
    switch (type) {
      case TQ1_0: {
        // Runs of 32, 16 and 4 bytes, of which the last is of two planes here.
        const uint8_t* block = row + 54 * (size_t)(group / 8);
        const uint8_t* run = block + (eight < 20 ? 8 * quarter : eight < 30 ? 32 + eight % 2 * 8 : 48);
        const uint32_t behind = eight < 30 ? 4 : 0;
        codes = dev::load2(run);
        signs = dev::load2(run + 2);
        highs = dev::load2(run + behind);
        scales = dev::load2(run + behind + 2);
        d = dev::load2(block + 52);
        return;
      }
      case TQ2_0: {
        const uint8_t* block = row + 66 * (size_t)(group / 8);
        const uint8_t* run = block + j / 4 * 32 + 8 * quarter;
        codes = dev::load2(run);
        signs = dev::load2(run + 2);
        highs = dev::load2(run + 4);
        scales = dev::load2(run + 6);
        d = dev::load2(block + 64);
        return;
      }
      case Q1_0: {
        const uint8_t* block = row + 18 * (size_t)(group / 4);
        codes = block[2 + group % 4 * 4 + quarter];
        d = dev::load2(block);
        return;
      }
      case Q2_0: {
        const uint8_t* block = row + 18 * (size_t)(group / 2);
        codes = dev::load2(block + 2 + group % 2 * 8 + 2 * quarter);
        d = dev::load2(block);
        return;
      }
      case IQ2_XXS: {
        const uint8_t* block = row + 66 * (size_t)(group / 8);
        codes = block[2 + 8 * j + quarter];
        signs = dev::load2(block + 6 + 8 * j);
        scales = dev::load2(block + 8 + 8 * j);
        d = dev::load2(block);
        return;
      }
      case IQ2_XS: {
        const uint8_t* block = row + 74 * (size_t)(group / 8);
        codes = dev::load2(block + 2 + 2 * eight);
        scales = block[66 + j];
        d = dev::load2(block);
        return;
      }
      case IQ2_S: {
        const uint8_t* block = row + 82 * (size_t)(group / 8);
        codes = block[2 + eight];
        signs = block[34 + eight];
        highs = block[66 + j];
        scales = block[74 + j];
        d = dev::load2(block);
        return;
      }
      case IQ3_XXS: {
        const uint8_t* block = row + 98 * (size_t)(group / 8);
        codes = dev::load2(block + 2 + 2 * eight);
        signs = dev::load2(block + 66 + 4 * j);
        scales = dev::load2(block + 68 + 4 * j);
        d = dev::load2(block);
        return;
      }
      case IQ3_S: {
        const uint8_t* block = row + 110 * (size_t)(group / 8);
        codes = dev::load2(block + 2 + 2 * eight);
        signs = block[74 + eight];
        highs = block[66 + j];
        scales = block[106 + j / 2];
        d = dev::load2(block);
        return;
      }
      case IQ1_S: {
        const uint8_t* block = row + 50 * (size_t)(group / 8);
        codes = block[2 + eight];
        highs = dev::load2(block + 34 + 2 * j);
        d = dev::load2(block);
        return;
      }
      case IQ1_M: {
        // Four words have four scales each, of 16 numbers, and a quarter of the block's scale.
        const uint8_t* block = row + 56 * (size_t)(group / 8);
        uint32_t words[2];
        codes = block[eight];
        highs = block[32 + eight / 2];
        dev::load8(block + 48, words);
        scales = words[0];
        d = words[1];
        return;
      }
    }
  }

  // Of what was loaded for the same numbers.
  __device__ __forceinline__ FewBits read(uint32_t type, const uint8_t* codebooks, uint32_t group, uint32_t quarter) const {
    FewBits of;
    of.factor = of.less = 1;
    of.d = dev::from_half((uint16_t)d);
    quarter = dev::not_before(quarter);
    const uint32_t j = group % 8, eight = 4 * j + quarter;
    // Where the first four magnitudes and the others are, and which of them are negative.
    uint32_t first = 0, second = 0, minus = 0;
    switch (type) {
      case TQ1_0: {
        // A byte is a fraction of 256 in base 3, and planes are as long as their run, the highest digit's first.
        const uint32_t planes = eight < 20 ? j : eight < 30 ? (eight - 20) / 2 : 2 * (eight - 30);
        // Three to the power of planes, up to four.
        const uint32_t power = planes == 4 ? 81 : 0x1b090301u >> (8 * planes) & 255;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
          const uint32_t four = i == 0 ? pair_of(codes, signs) : pair_of(highs, scales), times = i == 1 && eight >= 30 ? 3 * power : power;
          of.bytes[i] = 0;
#pragma unroll
          for (uint32_t k = 0; k < 4; k++) of.bytes[i] |= (((four >> (8 * k) & 255) * times & 255) * 3 >> 8) << (8 * k);
        }
        return of;
      }
      case TQ2_0:
        // As codes of Q2_K: each half of a block has 32 bytes of four planes.
        of.bytes[0] = pair_of(codes, signs) >> (2 * (j % 4)) & 0x03030303u;
        of.bytes[1] = pair_of(highs, scales) >> (2 * (j % 4)) & 0x03030303u;
        return of;
      case Q1_0:
        of.bytes[0] = 2 * spread(codes);
        of.bytes[1] = 2 * spread(codes >> 4);
        return of;
      case Q2_0:
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
          const uint32_t four = codes >> (8 * i);
          of.bytes[i] = (four & 3) | (four & 12) << 6 | (four & 48) << 12 | (four & 192) << 18;
        }
        return of;
      case IQ2_XXS:
        first = IQ2_XXS_CODEBOOK + 8 * codes;
        minus = even_signs(pair_of(signs, scales) >> (7 * quarter) & 127);
        of.factor += 2 * (scales >> 12);
        of.d *= 0.125f;
        break;
      case IQ2_XS:
        first = IQ2_XS_CODEBOOK + 8 * (codes & 511);
        minus = even_signs(codes >> 9);
        of.factor += 2 * (scales >> (quarter / 2 * 4) & 15);
        of.d *= 0.125f;
        break;
      case IQ2_S:
        first = IQ2_S_CODEBOOK + 8 * (codes | (highs >> (2 * quarter) & 3) << 8);
        minus = signs;
        of.factor += 2 * (scales >> (quarter / 2 * 4) & 15);
        of.d *= 0.125f;
        break;
      case IQ3_XXS:
        first = IQ3_XXS_CODEBOOK + 4 * (codes & 255);
        second = IQ3_XXS_CODEBOOK + 4 * (codes >> 8);
        minus = even_signs(pair_of(signs, scales) >> (7 * quarter) & 127);
        of.factor += 2 * (scales >> 12);
        of.d *= 0.25f;
        break;
      case IQ3_S:
        first = IQ3_S_CODEBOOK + 4 * ((codes & 255) | (highs >> (2 * quarter) & 1) << 8);
        second = IQ3_S_CODEBOOK + 4 * (codes >> 8 | (highs >> (2 * quarter) & 2) << 7);
        minus = signs;
        of.factor += 2 * (scales >> (j % 2 * 4) & 15);
        break;
      case IQ1_S:
        first = IQ1_CODEBOOK + 8 * (codes | (highs >> (3 * quarter) & 7) << 8);
        minus = highs >> 15;
        of.factor += 2 * (highs >> 12 & 7);
        of.d *= 0.125f;
        break;
      case IQ1_M: {
        const uint32_t high = highs >> (quarter % 2 * 4), four = (j < 4 ? scales : d) >> (j / 2 % 2 * 16);
        first = IQ1_CODEBOOK + 8 * (codes | (high & 7) << 8);
        minus = high >> 3 & 1;
        of.factor += 2 * (four >> (6 * (j % 2) + 3 * (quarter / 2)) & 7);
        of.d = 0.125f * dev::from_half((uint16_t)((scales >> 12 & 15) | scales >> 28 << 4 | (d >> 12 & 15) << 8 | d >> 28 << 12));
        break;
      }
    }
    of.less = 128;
    if (type == IQ3_XXS || type == IQ3_S) {
      of.bytes[0] = dev::load4(codebooks + first);
      of.bytes[1] = dev::load4(codebooks + second);
    } else {
      dev::load8(codebooks + first, of.bytes);
    }
    if (type == IQ1_S || type == IQ1_M) {
      // Entries are 127 + 8 g, for 8 g - 1 with a sign and 8 g + 1 without.
      const uint32_t more = minus == 0 ? 0x02020202u : 0;
      of.bytes[0] += more;
      of.bytes[1] += more;
      return of;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      // No magnitude is zero, so that no byte carries into the next.
      const uint32_t ones = spread(minus >> (4 * i));
      of.bytes[i] = ((of.bytes[i] ^ ones * 255) + ones) ^ 0x80808080u;
    }
    return of;
  }
};

// Numbers 8 * quarter to 8 * quarter + 7 of group `group` of a row.
__device__ __forceinline__ void load_few_bits(uint32_t type, const uint8_t* row, const uint8_t* codebooks, uint32_t group, uint32_t quarter, float w[8]) {
  StoredFewBits stored;
  stored.load(type, row, group, quarter);
  const FewBits few = stored.read(type, codebooks, group, quarter);
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = few.d * (float)few.code(i);
}
