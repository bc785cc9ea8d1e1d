// Changes of rows number by number (`RowOp` in crates/kernels/src/backend/rows.rs), and windows of rows.
#include "prelude.cuh"

#define SCALE 0
#define MULTIPLY 1
#define WEIGH 2
#define TANH 3
#define TAKE 4
#define PUT 5
#define ADD 6
#define SPREAD 7
#define MIX 8
#define MATCH_SIZE 9
#define XIELU 10
#define KEEP_OUTLIERS 11
#define ADD_BIAS 12
#define COPY_TAILS 13

__device__ __forceinline__ float squares_of(const float* x, uint32_t count, float* room) {
  float sum = 0.0f;
  for (uint32_t i = threadIdx.x; i < count; i += THREADS) sum = fmaf(x[i], x[i], sum);
  return block_sum(sum, room);
}

// (rows)
KERNEL(row_op, RowParams, THREADS) {
  SHARED(float, room);
  const uint32_t row = blockIdx.x;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  float* out = p.out + (size_t)row * p.cols;
  const float* x = p.x ? p.x + (size_t)row * p.x_cols : nullptr;
  float factor = p.a;
  if (p.op == MATCH_SIZE) {
    const float wanted = sqrtf(squares_of(x, p.cols, room) / p.cols);
    factor = wanted / fmaxf(sqrtf(squares_of(out, p.cols, room) / p.cols), p.a);
  }
  if (p.op == KEEP_OUTLIERS) {
    const uint32_t half = p.cols / 2;
    float sum = 0.0f, squares = 0.0f;
    for (uint32_t i = threadIdx.x; i < half; i += THREADS) sum += out[i];
    const float mean = block_sum(sum, room) / half;
    for (uint32_t i = threadIdx.x; i < half; i += THREADS) squares = fmaf(out[i] - mean, out[i] - mean, squares);
    factor = fmaf(p.a, sqrtf(block_sum(squares, room) / half), mean);
  }
  for (uint32_t i = threadIdx.x; i < p.cols; i += THREADS) {
    switch (p.op) {
      case SCALE: out[i] *= factor; break;
      case MULTIPLY: out[i] *= x[p.first + i]; break;
      case WEIGH: out[i] *= p.weights[i]; break;
      case TANH: out[i] = tanhf(out[i]); break;
      case TAKE: out[i] = x[p.first + i]; break;
      case PUT:
        if (i - p.first < p.x_cols) out[i] = x[i - p.first];
        break;
      case ADD: out[i] = fmaf(factor, x[p.first + i], out[i]); break;
      case SPREAD:
        if (i / p.x_cols >= p.first) out[i] += x[i % p.x_cols];
        break;
      case MIX: {
        const uint32_t streams = p.x_cols / p.width, stream = i / p.width;
        const float* weights = p.weights + (size_t)row * (p.cols / p.width) * streams + stream * streams;
        float sum = p.base[(size_t)row * p.cols + i];
        for (uint32_t t = 0; t < streams; t++) sum = fmaf(p.a + weights[t], x[t * p.width + i % p.width], sum);
        out[i] = sum;
        break;
      }
      case MATCH_SIZE: out[i] *= factor; break;
      case XIELU: {
        const float v = out[i];
        const float curved = v > 0.0f ? p.a * v * v : p.b * (expm1f(fminf(v, -1e-6f)) - v);
        out[i] = fmaf(p.c, v, curved);
        break;
      }
      case KEEP_OUTLIERS:
        if (i < p.cols / 2) out[i] = fmaxf(out[i] - factor, 0.0f);
        break;
      case ADD_BIAS: out[i] += p.weights[i]; break;
      // The last `tail` of each run of `width`, from runs of `first`.
      case COPY_TAILS: {
        const uint32_t from_end = p.width - i % p.width;
        if (from_end <= p.tail) out[i] = x[(i / p.width + 1) * p.first - from_end];
        break;
      }
    }
  }
}

// (rows): out[c * window + t] = x[row + t - window / 2][c] of the row's own sequence, or 0.
KERNEL(unfold, UnfoldParams, THREADS) {
  const uint32_t row = blockIdx.x;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const uint32_t* span = p.batch.spans + 4 * p.batch.sequence_of[row];
  float* out = p.out + (size_t)row * p.cols * p.window;
  for (uint32_t i = threadIdx.x; i < p.cols * p.window; i += THREADS) {
    const int from = (int)(row + i % p.window) - (int)(p.window / 2);
    const bool own = from >= (int)span[0] && from < (int)(span[0] + span[1]);
    out[i] = own ? p.x[(size_t)from * p.cols + i / p.window] : 0.0f;
  }
}
