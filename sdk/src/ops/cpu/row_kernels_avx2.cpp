#define ATELIER_ROW_KERNELS avx2_row_kernels
#include "ops/cpu/row_kernels.inc"
