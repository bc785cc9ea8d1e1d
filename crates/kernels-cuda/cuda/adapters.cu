// Changes of outputs by adapters (`OutputChange` in crates/kernels/src/backend/low_rank.rs); their products are those of matrices.
#include "prelude.cuh"

// (rows, or rows of logits): of one adapter's rows alone, out[first + i] = factors[i] * y + addends[i], y being x[first + i] or what `out` has
// there; addends[i] alone where the factor is 0.
KERNEL(change_outputs, ChangeOutputsParams, THREADS) {
  const uint32_t at = blockIdx.x;
  if (at >= p.batch.counts[p.logits ? COUNT_LOGIT_ROWS : COUNT_ROWS]) return;
  if (p.batch.adapters[p.logits ? p.batch.logit_rows[at] : at] != p.adapter) return;
  float* out = p.out + (size_t)at * p.cols + p.first;
  const float* y = p.x ? p.x + (size_t)at * p.cols + p.first : out;
  for (uint32_t i = threadIdx.x; i < p.count; i += THREADS)
    out[i] = p.factors[i] == 0.0f ? p.addends[i] : fmaf(p.factors[i], y[i], p.addends[i]);
}
