// Kernels for compute capability 9.0 alone: a module beside the other.
#include "product_wide.cu"
#include "attention_groups.cu"
