// What the pointwise operators ask of their arguments, and make of them.
#pragma once

#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "atelier/error.h"

namespace atelier::ops {

// Throws Error{kInvalidArgument} that names the operator and the tensors unless they fit.
inline void check(bool fits, const char* op, at::ArrayRef<at::Tensor> tensors) {
  if (fits) return;
  std::string shapes;
  for (const at::Tensor& t : tensors) {
    if (!shapes.empty()) shapes += ", ";
    shapes += c10::str(toString(t.scalar_type()), t.sizes());
  }
  throw Error(ErrorCode::kInvalidArgument, c10::str(op, ": do not fit together: ", shapes));
}

inline bool is_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

// With the last axis dense; other strides are as they are.
inline at::Tensor dense_rows(const at::Tensor& t) {
  return t.stride(-1) == 1 ? t : t.contiguous();
}

inline std::optional<at::Tensor> as_optional(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

}  // namespace atelier::ops
