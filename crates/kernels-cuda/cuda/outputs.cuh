// Which rows a product has, and where its numbers go.
#pragma once
#include "prelude.cuh"

// How many of the step's rows there are; none where no row has the adapter.
__device__ __forceinline__ uint32_t product_rows(const ProductParams& p) {
  const uint32_t rows = p.batch.counts[p.logits ? COUNT_LOGIT_ROWS : COUNT_ROWS];
  if (p.adapter == NONE) return rows;
  for (uint32_t at = 0; at < rows; at++) {
    if (p.batch.adapters[p.logits ? p.batch.logit_rows[at] : at] == p.adapter) return rows;
  }
  return 0;
}

// `row` is one of the step's, `output` one of the part's outputs or behind them.
__device__ __forceinline__ void write_product(const ProductParams& p, const Part& part, uint32_t row, uint32_t output, float total) {
  if (output >= part.rows || (p.adapter != NONE && p.batch.adapters[p.logits ? p.batch.logit_rows[row] : row] != p.adapter)) return;
  output += part.row_first;
  float* out = p.out + (size_t)row * p.out_stride + output;
  *out = p.adds ? fmaf(p.scale, total, *out) : activate(p.activation, total + (p.bias ? p.bias[output] : 0.0f));
}
