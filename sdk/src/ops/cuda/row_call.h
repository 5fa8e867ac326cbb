// One launch of a kernel on rows: tensors become arguments.
#pragma once

#include <ATen/ATen.h>

#include "atelier/host/weight_state.h"

#include "ops/autograd_support.h"
#include "ops/cuda/row_device.h"

namespace atelier::ops::cuda {

// Nothing for an undefined tensor, here and below.
Input input_of(const at::Tensor& t, int64_t stride, bool is_wide = false);

// Contiguous rows.
Input rows_of(const at::Tensor& t);

// Rows of samples, or one for all; of the dtype of `x` or float32.
Input columns_of(const at::Tensor& t, const at::Tensor& x);

// Columns of float32, whatever the rows are of.
Input wide_columns(const at::Tensor& t);

Output output_of(at::Tensor& t);

// Codes that a kernel is to write.
void put_codes(RowArguments& arguments, RowCodes& codes);

// Rounds sum k of `totals`, [S, sums, width], to the gradient that it is, where it is wanted.
void put_sum(const at::Tensor& totals, int64_t k, at::Tensor& gradient);

bool is_aligned(const void* data, int64_t stride, int64_t element_bytes);

// What the kernels can read as columns beside `x`.
at::Tensor readable(const at::Tensor& t, const at::Tensor& x);

// The caller fills in the arguments.
class RowCall {
 public:
  // like: of the kernel's element type, on its device. column_sums: how many the kernel leaves; 0
  // where they are not wanted.
  RowCall(const RowKernel& kernel, const at::Tensor& like, const Segments& rows, int64_t width,
          bool adds_up_rows, int64_t column_sums);

  RowArguments arguments = {};

  // Returns the sums over the rows of each sample, float32 [S, column_sums, width]; undefined where
  // they are not wanted.
  at::Tensor run();

 private:
  const RowKernel& kernel_;
  const at::Tensor& like_;
  const Segments& rows_;
  int64_t column_sums_;
  RowGrid grid_;
  at::Tensor offsets_, first_chunks_;
};

}  // namespace atelier::ops::cuda
