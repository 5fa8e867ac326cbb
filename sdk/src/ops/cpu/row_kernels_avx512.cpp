#define ATELIER_ROW_KERNELS avx512_row_kernels
#include "ops/cpu/row_kernels.inc"
