// Products on the tensor cores in numbers of 16 bits: rows of x cut into pieces that such numbers hold, and weights as their codes.
//
// Of 256 columns of a row, a power of two brings the largest to [2^14, 2^15); a half, and a half of what that leaves, have 22 bits of
// each and more of small ones. Beside weights in BF16 they are three of its numbers, which have all 24. A tile is eight rows: of each
// group of 32 columns, the words that lanes multiply lie side by side, piece by piece.
//
// A group's products are added up by the cores, the smallest pieces first, and nothing else is: then they are multiplied with the
// scale of the codes and of the row, and added to a sum in f32. So a number is the same whichever kernel computes it.
#pragma once
#include "pieces.cuh"
#include "weights.cuh"

// Outputs of a tile.
#define PRODUCT_OUTPUTS 16
// Any type, looked at for every group.
#define ANY_TYPE 0xfffffffdu
// Any type of 1 to 3 bits, likewise, and any of 8-bit floats: numbers that no type has, below those of affine ones.
#define FEW_BITS 999
#define BYTE_FLOATS 998

// A type as an argument.
template <uint32_t TYPE_>
struct Of {
  static constexpr uint32_t TYPE = TYPE_;
  static constexpr int PIECES = TYPE == BF16 ? 3 : 2;  // of x
};

// Types whose codes are bytes, or parts of them, that become halves without being numbers between.
template <uint32_t TYPE>
constexpr bool OF_BYTES = TYPE == Q8_0 || TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K || TYPE == MXFP4 || TYPE == BYTE_FLOATS;

// Eight bytes at a multiple of two.
__device__ __forceinline__ void load_pairs(const uint8_t* at, uint32_t words[2]) {
  if ((size_t)at % 4 == 0) {
    words[0] = dev::load4(at);
    words[1] = dev::load4(at + 4);
    return;
  }
  const uint32_t middle = dev::load4(at + 2);
  words[0] = dev::load2(at) | middle << 16;
  words[1] = middle >> 16 | dev::load2(at + 6) << 16;
}

// What a lane loads of a group of one output, ahead of its turn: words of codes, and what of the scales lies far from them. Scales that lie
// beside codes have been loaded with them when they are looked at.
template <uint32_t TYPE>
struct Stored {
  static constexpr bool HAS_HIGHS = TYPE == Q5_K || TYPE == Q6_K;
  uint32_t codes[TYPE == MXFP4 ? 3 : 2], highs[HAS_HIGHS ? 2 : 1];
  uint32_t factor, scale;  // of Q6_K; and of MXFP4 the first

  __device__ __forceinline__ void load(uint32_t type, const uint8_t* row, uint32_t group, uint32_t quarter) {
    const uint32_t j = group % 8;
    if constexpr (TYPE == Q8_0) {
      load_pairs(row + 34 * (size_t)group + 2 + 8 * quarter, codes);
    } else if constexpr (TYPE == MXFP4) {
      // The words that have its bytes, wherever these begin.
      const uint8_t* block = row + 17 * (size_t)group;
      const uint8_t* at = block + 1 + 8 * (quarter % 2);
      const uint32_t apart = (size_t)at % 4;
      codes[0] = dev::load4(at - apart);
      codes[1] = dev::load4(at - apart + 4);
      codes[2] = apart == 0 ? 0 : dev::load4(at - apart + 8);
      factor = block[0];
    } else if constexpr (TYPE == BYTE_FLOATS) {
      const uint8_t* at = row + fp8_bytes_at(type, group) + 8 * quarter;
      codes[0] = dev::load4(at);
      codes[1] = dev::load4(at + 4);
    } else if constexpr (TYPE == Q6_K) {
      const uint8_t* block = row + 210 * (size_t)(group / 8);
      load_pairs(block + j / 4 * 64 + 32 * (j % 2) + 8 * quarter, codes);
      load_pairs(block + 128 + j / 4 * 32 + 8 * quarter, highs);
      factor = block[192 + 2 * j + quarter / 2];
      scale = dev::load2(block + 208);
    } else {
      constexpr uint32_t CODES = TYPE == Q4_K ? 16 : 48;
      const uint8_t* block = row + (128 + CODES) * (size_t)(group / 8);
      dev::load8(block + CODES + j / 2 * 32 + 8 * quarter, codes);
      if constexpr (HAS_HIGHS) dev::load8(block + 16 + 8 * quarter, highs);
    }
  }

  // The codes that `codes8` gives, in bytes, but for the factor that those of Q6_K have, and floats as they are stored; and what is taken
  // away of each.
  __device__ __forceinline__ uint32_t read(uint32_t type, const uint8_t* row, uint32_t group, uint32_t bytes[2], Scale& of) const {
    const uint32_t j = group % 8;
    of.m[0] = of.m[1] = 0.0f;
    if constexpr (TYPE == Q8_0) {
      of.d = half_at(row + 34 * (size_t)group);
#pragma unroll
      for (int i = 0; i < 2; i++) bytes[i] = codes[i] ^ 0x80808080u;
      return 128;
    } else if constexpr (TYPE == MXFP4) {
      of.d = dev::from_bits(factor < 2 ? 0x00200000u << factor : (factor - 1) << 23);
      const uint32_t quarter = threadIdx.x % 4, from = 0x3210u + 0x1111u * (uint32_t)((size_t)(row + 17 * (size_t)group + 1) % 4);
#pragma unroll
      for (int i = 0; i < 2; i++) bytes[i] = dev::pick_bytes(codes[i], codes[i + 1], from) >> (4 * (quarter / 2)) & 0x0f0f0f0fu;
      return 0;
    } else if constexpr (TYPE == BYTE_FLOATS) {
      of.d = 256.0f * dev::from_bits(dev::load4(row + fp8_scale_at(type, group)));
      bytes[0] = codes[0];
      bytes[1] = codes[1];
      return 0;
    } else if constexpr (TYPE == Q6_K) {
      of.d = dev::from_half((uint16_t)scale);
      const uint32_t low_shift = 4 * (j / 2 % 2), high_shift = 2 * (j % 4);
#pragma unroll
      for (int i = 0; i < 2; i++) bytes[i] = (codes[i] >> low_shift & 0x0f0f0f0fu) | (highs[i] >> high_shift & 0x03030303u) << 4;
      return 32;
    } else {
      float least;
      scale_min(row + (TYPE == Q4_K ? 144 : 176) * (size_t)(group / 8), j, &of.d, &least);
      of.m[0] = of.m[1] = -least;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        bytes[i] = codes[i] >> (4 * (j % 2)) & 0x0f0f0f0fu;
        if constexpr (HAS_HIGHS) bytes[i] |= (highs[i] >> j & 0x01010101u) << 4;
      }
      return 0;
    }
  }
};

// Bytes as halves, less a number below 1,024: each stands behind the bits of 1,024, and both are taken away.
__device__ __forceinline__ void to_halves(const uint32_t bytes[2], uint32_t less, uint32_t words[4]) {
  const uint32_t minus = (0xe400u + less) * 0x10001u;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    words[2 * i] = dev::add_halves(dev::pick_bytes(bytes[i], 0x64646464u, 0x4140), minus);
    words[2 * i + 1] = dev::add_halves(dev::pick_bytes(bytes[i], 0x64646464u, 0x4342), minus);
  }
}

// The same of floats of four bits, twice each: sign, exponent and bit stand where a half has them, but for the exponent's bias.
__device__ __forceinline__ void floats_to_halves(const uint32_t bytes[2], uint32_t words[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint32_t codes = dev::pick_bytes(bytes[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
    words[i] = dev::multiply_add_halves((codes << 1 & 0x0e000e00u) | (codes << 4 & 0x80008000u), 0x78007800u, 0);
  }
}

// The same of floats of eight bits, 2^-8 of each.
__device__ __forceinline__ void bytes_to_halves(const uint32_t bytes[2], uint32_t words[4]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint32_t codes = dev::pick_bytes(bytes[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
    words[i] = (codes >> 1 & 0x3f803f80u) | (codes & 0x80008000u);
  }
}

// Codes of a lane's two outputs in a group: 8 * (lane % 4) to that + 7.
template <uint32_t TYPE>
struct Codes {
  static constexpr bool IS_FLOAT = TYPE == F16 || TYPE == BF16;
  static constexpr bool HAS_REST = TYPE == Q6_K || TYPE == ANY_TYPE;
  uint32_t words[2][4];
  uint32_t rest[HAS_REST ? 2 : 1][HAS_REST ? 4 : 1];  // of codes that a half does not hold
  Scale scales[IS_FLOAT ? 1 : 2];

  // `there` of the group's 32 columns are.
  __device__ __forceinline__ void load(uint32_t type, const uint8_t* const rows[2], bool even, uint32_t group, uint32_t there) {
    // What types make of it is not kept for all groups: that took more registers than there are.
    const uint32_t quarter = IS_FLOAT ? threadIdx.x % 4 : dev::not_before(threadIdx.x % 4);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint8_t* row = rows[half];
      if constexpr (IS_FLOAT) {
        const uint8_t* at = row + 64 * (size_t)group + 16 * quarter;
        if (even && there == 32) {
          dev::load16(at, words[half]);
        } else {
#pragma unroll
          for (uint32_t i = 0; i < 4; i++) {
            const uint32_t column = 8 * quarter + 2 * i;
            words[half][i] = (column < there ? dev::load2(at + 4 * i) : 0) | (column + 1 < there ? dev::load2(at + 4 * i + 2) << 16 : 0);
          }
        }
      } else {
        float codes[8];
        codes8(TYPE == ANY_TYPE ? type : TYPE, row, even, group, quarter, there, codes, scales[half]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const uint16_t a = dev::to_half(codes[2 * i]), b = dev::to_half(codes[2 * i + 1]);
          words[half][i] = a | (uint32_t)b << 16;
          if constexpr (HAS_REST) rest[half][i] = dev::to_half(codes[2 * i] - dev::from_half(a)) | (uint32_t)dev::to_half(codes[2 * i + 1] - dev::from_half(b)) << 16;
        }
      }
    }
  }
};

// A lane's two outputs of a group, as they were loaded: what stands between a load and the codes is done when these are multiplied. Types of
// few bits look numbers up in `codebooks`.
template <uint32_t TYPE, bool = OF_BYTES<TYPE>>
struct Loaded {
  Codes<TYPE> codes;

  __device__ __forceinline__ void load(uint32_t type, const uint8_t* const rows[2], bool even, uint32_t group, uint32_t there) { codes.load(type, rows, even, group, there); }
  __device__ __forceinline__ Codes<TYPE> read(uint32_t, const uint8_t* const*, const uint8_t*, uint32_t) const { return codes; }
};

template <uint32_t TYPE>
struct Loaded<TYPE, true> {
  Stored<TYPE> stored[2];

  // Rows of blocks are whole.
  __device__ __forceinline__ void load(uint32_t type, const uint8_t* const rows[2], bool, uint32_t group, uint32_t) {
#pragma unroll
    for (int half = 0; half < 2; half++) stored[half].load(type, rows[half], group, threadIdx.x % 4);
  }
  __device__ __forceinline__ Codes<TYPE> read(uint32_t type, const uint8_t* const rows[2], const uint8_t*, uint32_t group) const {
    Codes<TYPE> codes;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t bytes[2];
      const uint32_t less = stored[half].read(type, rows[half], group, bytes, codes.scales[half]);
      if constexpr (TYPE == MXFP4) floats_to_halves(bytes, codes.words[half]);
      else if constexpr (TYPE == BYTE_FLOATS) bytes_to_halves(bytes, codes.words[half]);
      else to_halves(bytes, less, codes.words[half]);
      if constexpr (TYPE == Q6_K) {
        const uint32_t times = dev::to_half((float)(int8_t)stored[half].factor) * 0x10001u;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          // What a half holds of the product, and the rest, which is exact.
          const uint32_t code = codes.words[half][i], upper = dev::multiply_add_halves(code, times, 0);
          codes.rest[half][i] = dev::multiply_add_halves(code, times, upper ^ 0x80008000u);
          codes.words[half][i] = upper;
        }
      }
    }
    return codes;
  }
};

template <>
struct Loaded<FEW_BITS, false> {
  StoredFewBits stored[2];

  __device__ __forceinline__ void load(uint32_t type, const uint8_t* const rows[2], bool, uint32_t group, uint32_t) {
#pragma unroll
    for (int half = 0; half < 2; half++) stored[half].load(type, rows[half], group, threadIdx.x % 4);
  }
  __device__ __forceinline__ Codes<FEW_BITS> read(uint32_t type, const uint8_t* const*, const uint8_t* codebooks, uint32_t group) const {
    Codes<FEW_BITS> codes;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const FewBits few = stored[half].read(type, codebooks, group, threadIdx.x % 4);
      to_halves(few.bytes, few.less, codes.words[half]);
      const uint32_t times = dev::to_half((float)few.factor) * 0x10001u;
#pragma unroll
      for (int i = 0; i < 4; i++) codes.words[half][i] = dev::multiply_add_halves(codes.words[half][i], times, 0);
      codes.scales[half] = {few.d, {0.0f, 0.0f}};
    }
    return codes;
  }
};

// Pieces of tiles of rows, of which a product has some.
struct Pieces {
  const uint8_t* words;
  const float* inverses;  // (tiles, blocks of columns, rows): what products are multiplied with
  const float* sums;      // (tiles, groups, halves, rows): of columns
  uint32_t groups;        // of a tile, in whole blocks
  uint32_t tile_first, rows;

  // `tile` is counted from the first on.
  template <int COUNT>
  __device__ __forceinline__ const uint8_t* at(uint32_t tile, uint32_t group) const {
    return words + ((size_t)(tile_first + tile) * groups + group) * COUNT * PIECE_BYTES;
  }
  __device__ __forceinline__ const float* inverse(uint32_t tile, uint32_t group) const {
    return inverses + ((size_t)(tile_first + tile) * (groups / 8) + group / 8) * PRODUCT_ROWS;
  }
  __device__ __forceinline__ const float* sum(uint32_t tile, uint32_t group, uint32_t half) const {
    return sums + (((size_t)(tile_first + tile) * groups + group) * 2 + half) * PRODUCT_ROWS;
  }
};

// Adds the products of a group, as the cores have added them up, to the sums of a tile.
template <uint32_t TYPE, int COUNT>
__device__ __forceinline__ void fold_group(const Codes<TYPE>& codes, uint32_t type, const float c[4], const Pieces& pieces, uint32_t tile, uint32_t group, float sums[4]) {
  if constexpr (COUNT == 3) {
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] += c[i];
    return;
  }
  const uint32_t pair = threadIdx.x % 4 * 2;
  uint32_t inverse[2];
  dev::load8(reinterpret_cast<const uint8_t*>(pieces.inverse(tile, group) + pair), inverse);
  if constexpr (Codes<TYPE>::IS_FLOAT) {
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] = fmaf(c[i], dev::from_bits(inverse[i % 2]), sums[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) sums[i] = fmaf(c[i], codes.scales[i / 2].d * dev::from_bits(inverse[i % 2]), sums[i]);
    if (has_minimums(TYPE == ANY_TYPE ? type : TYPE)) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        uint32_t of[2];
        dev::load8(reinterpret_cast<const uint8_t*>(pieces.sum(tile, group, half) + pair), of);
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] = fmaf(codes.scales[i / 2].m[half], dev::from_bits(of[i % 2]), sums[i]);
      }
    }
  }
}

// Adds the products of a group to the sums of a tile. `x` has the tile's pieces of the group, from global memory or shared.
template <uint32_t TYPE, int COUNT>
__device__ __forceinline__ void add_group(const Codes<TYPE>& codes, uint32_t type, const uint32_t x[COUNT][4], const Pieces& pieces, uint32_t tile, uint32_t group, float sums[4]) {
  float c[4] = {};
  if constexpr (COUNT == 3) {
    dev::multiply_bf16s(codes.words[0], codes.words[1], x, c);
  } else {
    if constexpr (Codes<TYPE>::HAS_REST) {
      if (TYPE == Q6_K || type == Q6_K) dev::multiply_halves<1>(codes.rest[0], codes.rest[1], x, c);
    }
    dev::multiply_halves<2>(codes.words[0], codes.words[1], x, c);
  }
  fold_group<TYPE, COUNT>(codes, type, c, pieces, tile, group, sums);
}

// Where a lane finds the two outputs of a tile that are its own; those that are not there are the part's last.
__device__ __forceinline__ void find_outputs(const Part& part, uint32_t tile, const uint8_t* rows[2]) {
#pragma unroll
  for (uint32_t half = 0; half < 2; half++) {
    const uint32_t output = PRODUCT_OUTPUTS * tile + 8 * half + threadIdx.x % 32 / 4;
    rows[half] = part.bytes + (size_t)(output < part.rows ? output : part.rows - 1) * part.row_bytes;
  }
}

// Whether rows of floats begin at multiples of 16 bytes.
__device__ __forceinline__ bool is_even(const Part& part) {
  return (part.type != F16 && part.type != BF16) || part.row_bytes % 16 == 0;
}

// Kernels are for matrices of floats alone, or for others: with a loop for each type that many models have, one for those of few bits, one for
// 8-bit floats and one for all the rest.
#define FLOATS 0
#define BLOCKS 1
#define OTHERS 2

template <int KIND, class Run>
__device__ __forceinline__ void for_type(uint32_t type, Run&& run) {
  if constexpr (KIND == FLOATS) return type == F16 ? run(Of<F16>()) : run(Of<BF16>());
  if constexpr (KIND == BLOCKS) {
    if (type == Q8_0) return run(Of<Q8_0>());
    if (type == Q4_K) return run(Of<Q4_K>());
    if (type == Q5_K) return run(Of<Q5_K>());
    if (type == Q6_K) return run(Of<Q6_K>());
    if (type == MXFP4) return run(Of<MXFP4>());
    if (is_fp8(type)) return run(Of<BYTE_FLOATS>());
    if (has_few_bits(type)) return run(Of<FEW_BITS>());
  }
  run(Of<ANY_TYPE>());
}
