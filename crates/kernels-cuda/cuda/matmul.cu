// out[r][m] = activate(Σ_k w[m][k] x[r][k] + bias[m]), or out[r][m] += scale * Σ_k w[m][k] x[r][k]; and tables of embeddings.
//
// A warp has one output of ROWS rows. Its lanes have groups of 32 columns in turns, and add up what they have by a
// butterfly at the end: the order is that of the matrix's shape alone, whatever shares the batch.
#include "weights.cuh"

#define ROWS 8

// Adds w[row] · x[at[r]] to sums[r] for `count` rows.
__device__ __forceinline__ void dots(const Stack& stack, uint32_t row, const float* x, const uint32_t at[ROWS], uint32_t stride, uint32_t count, float sums[ROWS]) {
  const Part& part = part_of(stack, row);
  const uint8_t* bytes = row_of(part, row);
  const uint32_t groups = (stack.cols + 31) / 32;
  float w[32];
  for (uint32_t group = threadIdx.x % 32; group < groups; group += 32) {
    const uint32_t left = stack.cols - 32 * group, there = left < 32 ? left : 32;
    load32(part.type, bytes, group, there, w);
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
      if (r < count) sums[r] = dot32(w, x + (size_t)at[r] * stride + 32 * group, there, 1.0f, sums[r]);
    }
  }
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) {
    if (r < count) sums[r] = dev::warp_sum(sums[r]);
  }
}

// (outputs / WARPS, rows / ROWS)
WIDE_KERNEL(matmul, MatmulParams, THREADS, 3) {
  const uint32_t output = blockIdx.x * WARPS + threadIdx.x / 32, first = blockIdx.y * ROWS;
  const uint32_t rows = p.batch.counts[p.logits ? COUNT_LOGIT_ROWS : COUNT_ROWS];
  if (output >= p.weights.rows || first >= rows) return;
  const uint32_t count = rows - first < ROWS ? rows - first : ROWS;
  uint32_t at[ROWS];
  bool wanted[ROWS], any = false;
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) {
    const uint32_t row = r < count ? first + r : first;
    at[r] = p.logits ? p.batch.logit_rows[row] : row;
    wanted[r] = r < count && (p.adapter == NONE || p.batch.adapters[row] == p.adapter);
    any |= wanted[r];
  }
  if (!any) return;
  float sums[ROWS] = {};
  dots(p.weights, output, p.x, at, p.x_stride, count, sums);
  const float bias = p.bias ? p.bias[output] : 0.0f;
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) {
    if (!wanted[r] || threadIdx.x % 32 != 0) continue;
    float* out = p.out + (size_t)(first + r) * p.out_stride + output;
    *out = p.adds ? fmaf(p.scale, sums[r], *out) : activate(p.activation, sums[r] + bias);
  }
}

#define IDS_TOKENS 0
#define IDS_POSITIONS 1
#define IDS_TYPES 2

// (rows): out = scale * table[id], or out += table[id].
KERNEL(embed, EmbedParams, THREADS) {
  const uint32_t row = blockIdx.x;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  uint32_t id = p.ids == IDS_TOKENS ? p.batch.tokens[row] : p.ids == IDS_TYPES ? p.batch.types[row] : p.batch.positions[row] + p.offset;
  if (id == NONE || id >= p.table.rows) return;
  const Part& part = part_of(p.table, id);
  const uint8_t* bytes = row_of(part, id);
  float* out = p.out + (size_t)row * p.table.cols;
  float w[32];
  for (uint32_t group = threadIdx.x; 32 * group < p.table.cols; group += THREADS) {
    const uint32_t left = p.table.cols - 32 * group, there = left < 32 ? left : 32;
    load32(part.type, bytes, group, there, w);
    for (uint32_t i = 0; i < there; i++) out[32 * group + i] = p.adds ? out[32 * group + i] + w[i] : p.scale * w[i];
  }
}

// (rows): hidden = activate(gate) * up
KERNEL(gate, GateParams, THREADS) {
  const uint32_t row = blockIdx.x;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const float* both = p.both + (size_t)row * 2 * p.width;
  float* hidden = p.hidden + (size_t)row * p.width;
  for (uint32_t i = threadIdx.x; i < p.width; i += THREADS) {
    hidden[i] = activate(p.activation, both[i]) * gate_factor(p.activation, both[p.width + i]);
  }
}
