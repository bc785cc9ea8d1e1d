// What products in pieces are made of, for matrices and for experts: rows are cut into pieces, and tiles of rows multiplied with tiles of
// outputs (product.cuh has the arithmetic). Columns are cut into segments, by the matrix's shape alone, whose sums are added up in
// order: by warps of a block that have one each, or by one warp after another.
#pragma once
#include "product.cuh"

// Columns of a product, and segments of them.
struct Columns {
  uint32_t cols, segments;

  __device__ __forceinline__ uint32_t blocks() const { return (cols + BLOCK_COLS - 1) / BLOCK_COLS; }
  __device__ __forceinline__ uint32_t groups() const { return (cols + 31) / 32; }
  // Where a segment begins, in groups.
  __device__ __forceinline__ uint32_t segment(uint32_t of) const { return groups() * of / segments; }
  // Columns of a group.
  __device__ __forceinline__ uint32_t there(uint32_t group) const {
    const uint32_t left = cols - 32 * group;
    return left < 32 ? left : 32;
  }
};

// What a block of the kernels for some rows has of a part: tiles of outputs from its own on, so many apart. Each warp has a segment
// of the columns; AHEAD groups of its weights are loaded before those before them are multiplied, or one and at its turn with 0.
template <class Of, int TILES, int AHEAD, class Write>
__device__ __forceinline__ void multiply_part(const Columns& columns, const Part& part, const uint8_t* codebooks, const Pieces& x, uint32_t first, float* room, const Write& write) {
  constexpr uint32_t TYPE = Of::TYPE;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = (part.rows + PRODUCT_OUTPUTS - 1) / PRODUCT_OUTPUTS;
  const uint32_t from = columns.segment(warp), to = columns.segment(warp + 1);
  const bool even = is_even(part);
  const uint8_t *rows[2], *here[2];  // of the groups that are loaded, and multiplied
  constexpr uint32_t COUNT = AHEAD > 0 ? AHEAD : 1;
  Loaded<TYPE> next[COUNT];
  const auto load = [&](uint32_t group) {
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      if (group + i < to) next[i].load(part.type, rows, even, group + i, columns.there(group + i));
    }
  };
  if (first < tiles) {
    find_outputs(part, first, rows);
    if (AHEAD > 0) load(from);
  }
  // Nothing but weights is read before this, where a kernel begins early.
  dev::wait_for_earlier();
#pragma unroll 1
  for (uint32_t tile = first; tile < tiles; tile += gridDim.x) {
    float sums[TILES][4] = {};
#pragma unroll 1
    for (uint32_t group = from; group < to; group += COUNT) {
      if (AHEAD == 0) load(group);
      Loaded<TYPE> now[COUNT];
#pragma unroll
      for (uint32_t i = 0; i < COUNT; i++) now[i] = next[i];
      here[0] = rows[0], here[1] = rows[1];
      // The group after these, or the first of the next tile.
      uint32_t after = group + COUNT;
      bool more = true;
      if (after >= to) {
        after = from;
        more = tile + gridDim.x < tiles;
        if (more) find_outputs(part, tile + gridDim.x, rows);
      }
      if (AHEAD > 0 && more) load(after);
#pragma unroll
      for (uint32_t i = 0; i < COUNT; i++) {
        if (group + i >= to) break;
        const Codes<TYPE> codes = now[i].read(part.type, here, codebooks, group + i);
#pragma unroll
        for (uint32_t t = 0; t < TILES; t++) {
          if (t > 0 && t * PRODUCT_ROWS >= x.rows) break;
          uint32_t words[Of::PIECES][4] = {};
          if (t * PRODUCT_ROWS + lane / 4 < x.rows) {
#pragma unroll
            for (int piece = 0; piece < Of::PIECES; piece++) dev::load16(x.at<Of::PIECES>(t, group + i) + piece * PIECE_BYTES + 16 * lane, words[piece]);
          }
          add_group<TYPE, Of::PIECES>(codes, part.type, words, x, t, group + i, sums[t]);
        }
      }
    }
    // (segments, tiles of rows, numbers of a lane, lanes)
    __syncthreads();
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int i = 0; i < 4; i++) room[((warp * TILES + t) * 4 + i) * 32 + lane] = sums[t][i];
    __syncthreads();
#pragma unroll 1
    for (uint32_t at = threadIdx.x; at < TILES * 128; at += blockDim.x) {
      const uint32_t i = at / 32 % 4, row = PRODUCT_ROWS * (at / 128) + 2 * (at % 4) + i % 2;
      if (row >= x.rows) continue;
      float total = 0.0f;
      for (uint32_t segment = 0; segment < columns.segments; segment++) total += room[segment * TILES * 128 + at];
      write(part, row, PRODUCT_OUTPUTS * tile + at % 32 / 4 + 8 * (i / 2), total);
    }
  }
}

// The tiles of the parts, one part after the other, each at its turn.
template <class Multiply>
__device__ __forceinline__ void for_parts(const Stack& weights, Multiply&& multiply) {
  uint32_t first = blockIdx.x;
#pragma unroll 1
  for (uint32_t at = 0; at < weights.count; at++) {
    const Part part = weights.parts[at];
    multiply(part, first);
    const uint32_t tiles = (part.rows + PRODUCT_OUTPUTS - 1) / PRODUCT_OUTPUTS;
    while (first < tiles) first += gridDim.x;
    first -= tiles;
  }
}

// Groups of blocks that are loaded ahead, where so many of floats are: those that take more registers are fewer, or none.
template <uint32_t TYPE, int TILES, int FLOATS_AHEAD>
constexpr int AHEAD_OF = TYPE == ANY_TYPE || TYPE == MXFP4 || (TYPE == FEW_BITS && TILES == 2) ? 0
                         : TYPE == Q5_K || TYPE == Q6_K || (TYPE == BYTE_FLOATS && TILES == 2) || TYPE == FEW_BITS ? (FLOATS_AHEAD + 3) / 4
                                                                            : FLOATS_AHEAD;

// `write(part, row, output, total)` is told of each row, and of outputs of the part or behind them.
template <int KIND, int TILES, int AHEAD, class Write>
__device__ __forceinline__ void multiply_some(const Stack& weights, const Columns& columns, bool bf16s, const Pieces& x, float* room, const Write& write) {
  if (KIND == FLOATS) {
    if (bf16s) {
      for_parts(weights, [&](const Part& part, uint32_t first) { multiply_part<Of<BF16>, TILES, AHEAD>(columns, part, nullptr, x, first, room, write); });
    } else {
      for_parts(weights, [&](const Part& part, uint32_t first) { multiply_part<Of<F16>, TILES, AHEAD>(columns, part, nullptr, x, first, room, write); });
    }
    return;
  }
  for_parts(weights, [&](const Part& part, uint32_t first) {
    for_type<KIND>(part.type, [&](auto of) { multiply_part<decltype(of), TILES, AHEAD_OF<decltype(of)::TYPE, TILES, AHEAD>>(columns, part, weights.codebooks, x, first, room, write); });
  });
}

// Tiles of rows of a block, and groups of their pieces that are there or on their way.
#define MANY_TILES 8
#define MANY_STAGES (Of::PIECES == 3 ? 2 : 3)

// A warp has a tile of outputs, all segments and eight tiles of rows; a block's warps bring the rows' pieces into shared memory, behind
// which each thread has its totals. Where it is `PARTIAL`, tiles without rows are left out; else there is memory of them.
template <class Of, bool PARTIAL, class Write>
__device__ __forceinline__ void multiply_tile(const Columns& columns, const Part& part, const uint8_t* codebooks, const Pieces& x, uint32_t tile, unsigned char* room, const Write& write) {
  constexpr uint32_t TYPE = Of::TYPE;
  constexpr uint32_t BYTES = MANY_TILES * Of::PIECES * PIECE_BYTES;
  const uint32_t lane = threadIdx.x % 32, groups = columns.groups(), tiles = (x.rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
  const auto bring = [&](uint32_t group) {
    if (group < groups) {
      unsigned char* to = room + group % MANY_STAGES * BYTES;
#pragma unroll
      for (uint32_t at = 16 * threadIdx.x; at < BYTES; at += 16 * THREADS) {
        const uint32_t t = at / (Of::PIECES * PIECE_BYTES);
        if (!PARTIAL || t < tiles) dev::bring16(to + at, x.at<Of::PIECES>(t, group) + at % (Of::PIECES * PIECE_BYTES));
      }
    }
    dev::brought();
  };
  const bool even = is_even(part);
  const uint8_t* rows[2];
  find_outputs(part, tile, rows);
  Loaded<TYPE> next;
  // What is loaded a group ahead, rather than when it is multiplied.
  constexpr bool AHEAD = Codes<TYPE>::IS_FLOAT || OF_BYTES<TYPE> || TYPE == FEW_BITS;
  const auto load = [&](uint32_t group) { next.load(part.type, rows, even, group, columns.there(group)); };
  float* totals = reinterpret_cast<float*>(room + MANY_STAGES * BYTES) + threadIdx.x;
  if (AHEAD) load(0);
#pragma unroll
  for (uint32_t group = 0; group + 1 < MANY_STAGES; group++) bring(group);
#pragma unroll 1
  for (uint32_t segment = 0; segment < columns.segments; segment++) {
    float sums[MANY_TILES][4] = {};
#pragma unroll 1
    for (uint32_t group = columns.segment(segment); group < columns.segment(segment + 1); group++) {
      dev::wait_for_all_but<MANY_STAGES - 2>();
      __syncthreads();
      bring(group + MANY_STAGES - 1);
      if (!AHEAD) load(group);
      const Codes<TYPE> now = next.read(part.type, rows, codebooks, group);
      if (AHEAD && group + 1 < groups) load(group + 1);
      const unsigned char* stage = room + group % MANY_STAGES * BYTES;
#pragma unroll
      for (uint32_t t = 0; t < MANY_TILES; t++) {
        if (PARTIAL && t > 0 && t >= tiles) break;
        uint32_t words[Of::PIECES][4];
        if (t % 2 == 0) dev::one_by_one();
#pragma unroll
        for (int piece = 0; piece < Of::PIECES; piece++) dev::shared16(stage + (t * Of::PIECES + piece) * PIECE_BYTES + 16 * lane, words[piece]);
        add_group<TYPE, Of::PIECES>(now, part.type, words, x, t, group, sums[t]);
      }
    }
#pragma unroll
    for (int i = 0; i < MANY_TILES * 4; i++) totals[i * THREADS] = (segment == 0 ? 0.0f : totals[i * THREADS]) + sums[i / 4][i % 4];
  }
#pragma unroll 1
  for (uint32_t i = 0; i < MANY_TILES * 4; i++) {
    const uint32_t row = PRODUCT_ROWS * (i / 4) + 2 * (lane % 4) + i % 2;
    if (row < x.rows) write(part, row, PRODUCT_OUTPUTS * tile + lane / 4 + i % 4 / 2 * 8, totals[i * THREADS]);
  }
}

// Tile `tile` of the outputs of all parts, and up to eight tiles of rows.
template <int KIND, bool PARTIAL, class Write>
__device__ __forceinline__ void multiply_rows(const Stack& weights, const Columns& columns, const Pieces& x, uint32_t tile, unsigned char* room, const Write& write) {
  uint32_t at = 0;
  while (at + 1 < weights.count && tile * PRODUCT_OUTPUTS >= weights.parts[at].rows) tile -= (weights.parts[at++].rows + PRODUCT_OUTPUTS - 1) / PRODUCT_OUTPUTS;
  // Behind the last tile a warp has outputs that are nobody's: it brings rows for the others.
  const Part part = weights.parts[at];
  for_type<KIND>(part.type, [&](auto of) { multiply_tile<decltype(of), PARTIAL>(columns, part, weights.codebooks, x, tile, room, write); });
}
