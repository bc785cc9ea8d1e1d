// Norms (norm.cuh has what they are): a block has one part of one row, (rows, parts).
#include "norm.cuh"

KERNEL(norm, NormParams, NORM_THREADS) {
  SHARED(float, room);
  norm_part<false>(p, blockIdx.x, blockIdx.y, room);
}
