// What the pointwise operators ask of their arguments, and make of them.
#pragma once

#include <optional>
#include <string>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "atelier/error.h"
#include "atelier/segments.h"

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

inline bool is_packed(const at::Tensor& x, const Segments& rows) {
  return x.dim() == 2 && x.size(0) == rows.total();
}

// Whether rows of `t` can modulate the samples of x.
inline bool modulates(const at::Tensor& t, const at::Tensor& x, const Segments& rows) {
  const bool is_wider = t.scalar_type() == at::kFloat && x.element_size() == 2;
  return t.dim() == 2 && t.size(0) == rows.count() && t.size(1) == x.size(1) &&
         (t.scalar_type() == x.scalar_type() || is_wider);
}

inline bool is_width_of(const at::Tensor& t, const at::Tensor& x) {
  return t.dim() == 1 && t.size(0) == x.size(-1);
}

// With the last axis dense; other strides are as they are.
inline at::Tensor dense_rows(const at::Tensor& t) {
  return t.stride(-1) == 1 ? t : t.contiguous();
}

inline at::Tensor dense_or_undefined(const at::Tensor& t) {
  return t.defined() ? dense_rows(t) : t;
}

// A tensor for autograd, which knows no undefined ones.
inline std::optional<at::Tensor> as_optional(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

// What a backward pass asks for. Gradients that nobody gave stay undefined in it.
inline void save(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list tensors,
                 double eps) {
  ctx->save_for_backward(std::move(tensors));
  ctx->saved_data["eps"] = eps;
  ctx->set_materialize_grads(false);
}
inline void save(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list tensors,
                 const Segments& rows, double eps) {
  save(ctx, std::move(tensors), eps);
  ctx->saved_data["rows"] = rows.tensor();
}
inline double saved_eps(torch::autograd::AutogradContext* ctx) {
  return ctx->saved_data["eps"].toDouble();
}
inline Segments saved_rows(torch::autograd::AutogradContext* ctx) {
  return Segments::from_tensor(ctx->saved_data["rows"].toTensor());
}

// Room for a result of the shape, dtype and device of `like`, and for one that may not be wanted.
inline at::Tensor packed_like(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options());
}
inline at::Tensor packed_if(bool is_wanted, const at::Tensor& like) {
  return is_wanted ? packed_like(like) : at::Tensor();
}

}  // namespace atelier::ops
