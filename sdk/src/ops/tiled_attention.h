// Attention whose scores are made tile by tile: what the back ends leave out, on every device.
#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

#include "atelier/ops/attention.h"

namespace atelier::ops {

// q: [B, H, L, d]; k, v: [B, K, L, d], K divides H. Returns {output [B, H, L, d] in q's dtype,
// log-sum-exp [B, H, L] in float32, or float64 of that}.
std::tuple<at::Tensor, at::Tensor> tiled_attention(const at::Tensor& q, const at::Tensor& k,
                                                   const at::Tensor& v,
                                                   const AttentionOptions& options);

// Gradients of q, k and v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> tiled_attention_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& log_sum_exp, const AttentionOptions& options);

}  // namespace atelier::ops
