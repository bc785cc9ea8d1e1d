// out[r][m] = activate(Σ_k w[m][k] x[r][k] + bias[m]), or out[r][m] += scale * Σ_k w[m][k] x[r][k], of matrices without weights in F32
// (multiply.cuh has the loops; matmul.cu the others).
#include "gate.cuh"
#include "heads.cuh"
#include "multiply.cuh"
#include "norm.cuh"
#include "outputs.cuh"

// (rows, blocks of columns / WARPS): x in pieces, a block of columns to each warp.
KERNEL(pieces, PiecesParams, THREADS) {
  const uint32_t at = blockIdx.x, block = blockIdx.y * WARPS + threadIdx.x / 32, blocks = (p.cols + BLOCK_COLS - 1) / BLOCK_COLS;
  if (at >= p.batch.counts[p.logits ? COUNT_LOGIT_ROWS : COUNT_ROWS] || block >= blocks) return;
  const float* x = p.x + (size_t)(p.logits ? p.batch.logit_rows[at] : at) * p.x_stride;
  float own[8];
  load_columns(x, BLOCK_COLS * block + 8 * (threadIdx.x % 32), p.cols, (size_t)p.x % 16 == 0 && p.x_stride % 4 == 0, own);
  cut_block({p.pieces, p.inverses, p.sums, blocks, p.form}, at, block, own);
}

template <int KIND, int TILES, int AHEAD>
__device__ __forceinline__ void multiply_few(const ProductParams& p, float* room) {
  dev::begins_early();
  const Columns columns = {p.weights.cols, p.segments};
  const Pieces x = {p.pieces, p.inverses, p.sums, 8 * columns.blocks(), 0, product_rows(p)};
  // Otherwise weights are on their way before it is known how many rows there are.
  if (p.adapter != NONE) {
    dev::wait_for_earlier();
    if (x.rows == 0) return;
  }
  multiply_some<KIND, TILES, AHEAD>(p.weights, columns, p.bf16s, x, room, [&](const Part& part, uint32_t row, uint32_t output, float total) { write_product(p, part, row, output, total); });
  // Each part has waited; that there is one nothing here says.
  dev::wait_for_earlier();
}

template <int KIND>
__device__ __forceinline__ void multiply_many_rows(const ProductParams& p, unsigned char* room) {
  const Columns columns = {p.weights.cols, p.segments};
  const uint32_t rows = product_rows(p), row_first = blockIdx.x * MANY_TILES * PRODUCT_ROWS;
  if (row_first >= rows) return;
  const Pieces x = {p.pieces, p.inverses, p.sums, 8 * columns.blocks(), row_first / PRODUCT_ROWS, rows - row_first};
  multiply_rows<KIND, false>(p.weights, columns, x, blockIdx.y * WARPS + threadIdx.x / 32, room, [&](const Part& part, uint32_t row, uint32_t output, float total) {
    write_product(p, part, row_first + row, output, total);
  });
}

// Does what comes after a product of up to eight rows. Each block counts its tiles of outputs, or itself, when it has written all of them:
// so nothing waits, and the last to be counted has a group's columns of all rows before it. Shared: `told`, behind what groups need.
__device__ __forceinline__ void do_then(const ProductParams& p, const Then& then, uint32_t rows, float* room) {
  if (then.what == THEN_NOTHING) return;
  const uint32_t warp = threadIdx.x / 32;
  uint32_t* told = reinterpret_cast<uint32_t*>(room + p.segments * 128);
  __syncthreads();
  if (then.what == THEN_NORM) {
    if (threadIdx.x == 0) told[0] = dev::is_last_of(then.arrived, gridDim.x);
    __syncthreads();
    if (!told[0]) return;
    norm_part<true>(then.of.norm, 0, 0, room);
    return;
  }
  // A lane of the first warp has one of the block's tiles.
  uint32_t count = 0, output = NONE;
  for_parts(p.weights, [&](const Part& part, uint32_t first) {
    for (uint32_t tile = first; tile * PRODUCT_OUTPUTS < part.rows; tile += gridDim.x) {
      if (threadIdx.x == count++) output = part.row_first + PRODUCT_OUTPUTS * tile;
    }
  });
  if (threadIdx.x < count) {
    // Columns of a group are whole tiles.
    uint32_t group, tiles;
    if (then.what == THEN_GATE) {
      const uint32_t width = then.of.gate.width, column = output < width ? output : output - width;
      group = column / BLOCK_COLS;
      const uint32_t left = width - BLOCK_COLS * group;
      tiles = 2 * (left < BLOCK_COLS ? left : BLOCK_COLS) / PRODUCT_OUTPUTS;
    } else {
      group = output / then.of.heads.head_dim;
      tiles = then.of.heads.head_dim / PRODUCT_OUTPUTS;
    }
    told[threadIdx.x] = group < then.groups && dev::is_last_of(then.arrived + group, tiles) ? group : NONE;
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t at = 0; at < count; at++) {
    const uint32_t group = told[at];
    if (group == NONE) continue;
    if (then.what == THEN_GATE) {
      for (uint32_t row = warp; row < rows; row += p.segments) gate_block<true>(then.of.gate, row, group);
    } else {
      for (uint32_t row = warp; warp < then.at_once && row < rows; row += then.at_once) turn_and_put<true>(then.of.heads, row, group, room + warp * then.of.heads.head_dim);
    }
  }
}

// (blocks, 1): of up to 8 rows, 16, and 64. Warps of a block are as many as segments.
#define SOME_KERNEL(name, KIND, TILES, AHEAD, blocks) \
  WIDE_KERNEL(name, ProductParams, 2 * THREADS, blocks) { \
    SHARED(float, room); \
    multiply_few<KIND, TILES, AHEAD>(p, room); \
  }
// Those for eight rows have something to do besides, or nothing.
#define FEW_KERNEL(name, KIND, AHEAD) \
  WIDE_KERNEL(name, FewParams, 2 * THREADS, 2) { \
    SHARED(float, room); \
    multiply_few<KIND, 1, AHEAD>(p.product, room); \
    do_then(p.product, p.then, p.product.batch.counts[p.product.logits ? COUNT_LOGIT_ROWS : COUNT_ROWS], room); \
  }
FEW_KERNEL(product_few, FLOATS, 3)
SOME_KERNEL(product_some, FLOATS, 2, 2, 2)
SOME_KERNEL(product_batch, FLOATS, 8, 2, 1)
FEW_KERNEL(product_few_blocks, BLOCKS, 2)
SOME_KERNEL(product_some_blocks, BLOCKS, 2, 2, 2)
SOME_KERNEL(product_batch_blocks, BLOCKS, 8, 2, 1)

// (rows / 64, tiles of outputs / WARPS)
WIDE_KERNEL(product_many, ProductParams, THREADS, 2) {
  SHARED(unsigned char, room);
  multiply_many_rows<FLOATS>(p, room);
}

WIDE_KERNEL(product_many_blocks, ProductParams, THREADS, 2) {
  SHARED(unsigned char, room);
  multiply_many_rows<BLOCKS>(p, room);
}
