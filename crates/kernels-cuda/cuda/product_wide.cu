// Products of many rows on cards of compute capability 9.0, where groups of four warps multiply what lies in shared memory: the numbers of
// product.cu's kernels for many rows, of the same sums in the same order. Rows' pieces lie by words (pieces.cuh), so that lanes bring
// weights as they do everywhere.
#include "multiply.cuh"
#include "hopper.cuh"
#include "outputs.cuh"

#define WIDE_THREADS 256
#define WIDE_ROWS 128
#define WIDE_TILES (WIDE_ROWS / PRODUCT_ROWS)
#define WIDE_NUMBERS (4 * WIDE_TILES)
// Groups of rows' pieces that are there or on their way.
template <int COUNT>
constexpr uint32_t WIDE_STAGES = COUNT == 3 ? 3 : 4;
#define WIDE_STAGES_MAX 4
// Barriers stand before them.
#define WIDE_BARRIERS_BYTES 128

// Stages of rows' pieces in shared memory, brought by a block's first warp and read by all.
template <int COUNT>
struct Ring {
  static constexpr uint32_t STAGES = WIDE_STAGES<COUNT>, TILE_BYTES = COUNT * PIECE_BYTES, BYTES = WIDE_TILES * TILE_BYTES;
  uint64_t *there, *read;  // of each stage
  unsigned char* stages;

  __device__ __forceinline__ explicit Ring(unsigned char* room) : there(reinterpret_cast<uint64_t*>(room)), read(there + WIDE_STAGES_MAX), stages(room + WIDE_BARRIERS_BYTES) {}

  // By the lanes of a warp.
  __device__ __forceinline__ void bring(const Pieces& x, uint32_t tiles, uint32_t group) const {
    const uint32_t stage = group % STAGES, turn = group / STAGES, lane = threadIdx.x % 32;
    if (turn > 0) dev::wait_for_phase(read + stage, (turn - 1) % 2);
    if (lane == 0) dev::arrive_expecting(there + stage, tiles * TILE_BYTES);
    __syncwarp();
    if (lane < tiles) dev::bring_bytes(stages + stage * BYTES + lane * TILE_BYTES, x.at<COUNT>(lane, group), TILE_BYTES, there + stage);
  }
  __device__ __forceinline__ const unsigned char* wait(uint32_t group) const {
    dev::wait_for_phase(there + group % STAGES, group / STAGES % 2);
    return stages + group % STAGES * BYTES;
  }
  // By every warp, when nothing of it reads the group any more.
  __device__ __forceinline__ void done(uint32_t group) const {
    if (threadIdx.x % 32 == 0) dev::arrive(read + group % STAGES);
  }
};

// The barriers of a block's ring, before anyone asks for one.
__device__ __forceinline__ void begin_ring(unsigned char* room) {
  uint64_t* there = reinterpret_cast<uint64_t*>(room);
  if (threadIdx.x == 0) {
    for (uint32_t stage = 0; stage < WIDE_STAGES_MAX; stage++) {
      dev::begin_barrier(there + stage, 1);
      dev::begin_barrier(there + WIDE_STAGES_MAX + stage, WIDE_THREADS / 32);
    }
    dev::barriers_begun();
  }
  __syncthreads();
}

// Asks for the products of 32 columns with a piece of rows.
template <bool BF16S, bool ADDED>
__device__ __forceinline__ void ask_piece(float (&c)[WIDE_NUMBERS], const uint32_t (&first)[4], const uint32_t (&second)[4], const unsigned char* piece, uint32_t tile_bytes) {
  // A square has a word of each lane that brings it: two of them are 16 columns.
  dev::ask_products<BF16S, ADDED>(c, first, dev::squares(piece, PIECE_BYTES / 4, tile_bytes));
  dev::ask_products<BF16S, true>(c, second, dev::squares(piece + PIECE_BYTES / 2, PIECE_BYTES / 4, tile_bytes));
}

// Four warps have 64 outputs of a part, each 16 of them, all segments and 16 tiles of rows.
template <class Of, class Write>
__device__ __forceinline__ void multiply_wide(const Columns& columns, const Part& part, const uint8_t* codebooks, const Pieces& x, uint32_t tile, unsigned char* room, const Write& write) {
  constexpr uint32_t TYPE = Of::TYPE;
  constexpr int COUNT = Of::PIECES;
  constexpr bool BF16S = COUNT == 3;
  constexpr int REST = TYPE == Q6_K;  // which no other loop is for
  const Ring<COUNT> ring(room);
  const uint32_t lane = threadIdx.x % 32, groups = columns.groups(), all_tiles = (x.rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
  const uint32_t tiles = all_tiles < WIDE_TILES ? all_tiles : WIDE_TILES;
  const bool even = is_even(part), brings = threadIdx.x < 32;
  const uint8_t* rows[2];
  find_outputs(part, tile, rows);
  Loaded<TYPE> next;
  constexpr bool AHEAD = Codes<TYPE>::IS_FLOAT || OF_BYTES<TYPE> || TYPE == FEW_BITS;
  const auto load = [&](uint32_t group) { next.load(part.type, rows, even, group, columns.there(group)); };
  float* totals = reinterpret_cast<float*>(ring.stages + ring.STAGES * ring.BYTES) + threadIdx.x;
  if (AHEAD) load(0);
  if (brings) {
#pragma unroll 1
    for (uint32_t group = 0; group + 1 < ring.STAGES && group < groups; group++) ring.bring(x, tiles, group);
  }
#pragma unroll 1
  for (uint32_t segment = 0; segment < columns.segments; segment++) {
    float sums[WIDE_TILES][4] = {};
#pragma unroll 1
    for (uint32_t group = columns.segment(segment); group < columns.segment(segment + 1); group++) {
      if (!AHEAD) load(group);
      const Codes<TYPE> now = next.read(part.type, rows, codebooks, group);
      if (AHEAD && group + 1 < groups) load(group + 1);
      // Of each half of the columns, as lanes bring them.
      const uint32_t first[4] = {now.words[0][0], now.words[1][0], now.words[0][1], now.words[1][1]};
      const uint32_t second[4] = {now.words[0][2], now.words[1][2], now.words[0][3], now.words[1][3]};
      const uint32_t rest[2][4] = {{now.rest[0][0], now.rest[REST][0], now.rest[0][REST], now.rest[REST][REST]}, {now.rest[0][2 * REST], now.rest[REST][2 * REST], now.rest[0][3 * REST], now.rest[REST][3 * REST]}};
      const unsigned char* stage = ring.wait(group);
      float c[WIDE_NUMBERS];
      // What the codes' own halves do not hold comes first, then the smallest pieces.
      if constexpr (REST) {
        dev::products_begin();
        ask_piece<false, false>(c, rest[0], rest[1], stage, ring.TILE_BYTES);
        ask_piece<false, true>(c, first, second, stage + PIECE_BYTES, ring.TILE_BYTES);
      } else {
        dev::products_begin();
        ask_piece<BF16S, false>(c, first, second, stage + (COUNT - 1) * PIECE_BYTES, ring.TILE_BYTES);
      }
      if constexpr (BF16S) ask_piece<BF16S, true>(c, first, second, stage + PIECE_BYTES, ring.TILE_BYTES);
      ask_piece<BF16S, true>(c, first, second, stage, ring.TILE_BYTES);
      dev::products_asked();
      // Behind the others, which have read the group before this one.
      if (brings && group + ring.STAGES - 1 < groups) ring.bring(x, tiles, group + ring.STAGES - 1);
      dev::wait_for_products_but<0>(c);
      ring.done(group);
#pragma unroll
      for (uint32_t t = 0; t < WIDE_TILES; t++) {
        if (t > 0 && t >= tiles) break;
        fold_group<TYPE, COUNT>(now, part.type, c + 4 * t, x, t, group, sums[t]);
      }
    }
#pragma unroll
    for (int i = 0; i < WIDE_NUMBERS; i++) totals[i * WIDE_THREADS] = (segment == 0 ? 0.0f : totals[i * WIDE_THREADS]) + sums[i / 4][i % 4];
  }
#pragma unroll 1
  for (uint32_t i = 0; i < WIDE_NUMBERS; i++) {
    const uint32_t row = PRODUCT_ROWS * (i / 4) + 2 * (lane % 4) + i % 2;
    if (row < x.rows) write(part, row, PRODUCT_OUTPUTS * tile + lane / 4 + i % 4 / 2 * 8, totals[i * WIDE_THREADS]);
  }
}

// Four warps do the same at the same time, so they have outputs of one part.
template <int KIND>
__device__ __forceinline__ void multiply_wide_rows(const ProductParams& p, unsigned char* room) {
  const Columns columns = {p.weights.cols, p.segments};
  const uint32_t rows = product_rows(p), row_first = blockIdx.x * WIDE_ROWS;
  if (row_first >= rows) return;
  const Pieces x = {p.pieces, p.inverses, p.sums, 8 * columns.blocks(), row_first / PRODUCT_ROWS, rows - row_first};
  constexpr uint32_t OUTPUTS = 4 * PRODUCT_OUTPUTS;
  uint32_t of = blockIdx.y * (WIDE_THREADS / 128) + threadIdx.x / 128, at = 0;
  while (at + 1 < p.weights.count && of * OUTPUTS >= p.weights.parts[at].rows) of -= (p.weights.parts[at++].rows + OUTPUTS - 1) / OUTPUTS;
  const Part part = p.weights.parts[at];
  const auto write = [&](const Part& part, uint32_t row, uint32_t output, float total) { write_product(p, part, row_first + row, output, total); };
  begin_ring(room);
  for_type<KIND>(part.type, [&](auto type) { multiply_wide<decltype(type)>(columns, part, p.weights.codebooks, x, 4 * of + threadIdx.x % 128 / 32, room, write); });
}

// (rows / 128, 64 outputs of a part / 2)
WIDE_KERNEL(product_wide, ProductParams, WIDE_THREADS, 1) {
  SHARED(unsigned char, room);
  multiply_wide_rows<FLOATS>(p, room);
}

WIDE_KERNEL(product_wide_blocks, ProductParams, WIDE_THREADS, 1) {
  SHARED(unsigned char, room);
  multiply_wide_rows<BLOCKS>(p, room);
}
