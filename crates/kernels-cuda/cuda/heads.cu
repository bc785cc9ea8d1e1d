// Heads (heads.cuh has what is done to them): a warp has one head of one row, (rows, heads + 2 * kv_heads), or as many as there are.
#include "heads.cuh"

KERNEL(heads, HeadParams, 32) {
  SHARED(float, x);
  turn_and_put<false>(p, blockIdx.x, blockIdx.y, x);
}
