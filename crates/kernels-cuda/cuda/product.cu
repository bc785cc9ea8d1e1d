// out[r][m] = activate(Σ_k w[m][k] x[r][k] + bias[m]), or out[r][m] += scale * Σ_k w[m][k] x[r][k], of matrices without weights in F32
// (multiply.cuh has the loops; matmul.cu the others).
#include "multiply.cuh"
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
  const Columns columns = {p.weights.cols, p.segments};
  const Pieces x = {p.pieces, p.inverses, p.sums, 8 * columns.blocks(), 0, product_rows(p)};
  // Otherwise weights are on their way before it is known how many rows there are.
  if (p.adapter != NONE && x.rows == 0) return;
  multiply_some<KIND, TILES, AHEAD>(p.weights, columns, p.bf16s, x, room, [&](const Part& part, uint32_t row, uint32_t output, float total) { write_product(p, part, row, output, total); });
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

// (blocks, 1): of up to 8 rows, 16, and 64. Warps of a block are as many as segments.
#define SOME_KERNEL(name, KIND, TILES, AHEAD, blocks) \
  WIDE_KERNEL(name, ProductParams, 2 * THREADS, blocks) { \
    SHARED(float, room); \
    multiply_few<KIND, TILES, AHEAD>(p, room); \
  }
SOME_KERNEL(product_few, FLOATS, 1, 3, 2)
SOME_KERNEL(product_some, FLOATS, 2, 2, 2)
SOME_KERNEL(product_batch, FLOATS, 8, 2, 1)
SOME_KERNEL(product_few_blocks, BLOCKS, 1, 2, 2)
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
