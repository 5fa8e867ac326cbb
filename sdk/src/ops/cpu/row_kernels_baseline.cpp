#define ATELIER_ROW_KERNELS baseline_row_kernels
#include "ops/cpu/row_kernels.inc"
