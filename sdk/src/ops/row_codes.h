// Rows as codes of 8 bits, values of codes, and sums of products of codes.
#pragma once

#include "atelier/host/weight_state.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

// These stand in for what runs without them, and give the same bits.
struct RowCodesKernels {
  using Tensor = at::Tensor;

  // Rows [N, D], of which only the last axis need be dense, as codes of int8 or e4m3. `factor`,
  // float32 [D], by which they are multiplied first, may be undefined.
  void (*quantize)(const Tensor& rows, const Tensor& factor, RowCodes& codes);
  // The values of codes [N, D], rounded once.
  void (*draw)(const RowCodes& codes, Tensor& out);
  // Puts int32 `sums` [N, D], times the scales of rows and columns, into `out`, dense rows; a bias
  // [D] of its dtype, which may be undefined, is added to what was rounded.
  void (*scale_sums)(const Tensor& sums, const Tensor& row_scales, const Tensor& column_scales,
                     const Tensor& bias, Tensor& out);
  KernelLimits limits;  // of rows that are quantised
};
extern ATELIER_API KernelTable<RowCodesKernels> row_codes_kernels;

}  // namespace atelier::ops
