// Every kernel: one module.
#include "norm.cu"
#include "rows.cu"
#include "matmul.cu"
#include "product.cu"
#include "experts.cu"
#include "heads.cu"
#include "attention.cu"
#include "states.cu"
