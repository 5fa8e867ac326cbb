// What operators and their kernels share.
#pragma once

#include <cmath>
#include <initializer_list>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/segments.h"

namespace atelier::ops {

// Whether autograd would record an operator on `tensors`. Undefined ones are allowed.
inline bool needs_graph(at::ArrayRef<at::Tensor> tensors) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor& t : tensors) {
    if (t.defined() && t.requires_grad()) return true;
  }
  return false;
}

// The type that sums over elements of `t` are made in.
inline at::ScalarType wide(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Rows that are all of one sample, and the rows of a tensor whose last axis they are.
inline Segments one_sample(int64_t rows) {
  return Segments({rows});
}
inline int64_t row_count(const at::Tensor& t) {
  return t.size(-1) == 0 ? 0 : t.numel() / t.size(-1);
}

// A tensor of `sizes` whose values nobody may read: NaN, and the bytes of one element.
inline at::Tensor stand_in(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::full({}, NAN, options).expand(sizes).tensor_data();
}

}  // namespace atelier::ops
