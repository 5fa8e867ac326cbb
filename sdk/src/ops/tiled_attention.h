// Attention whose scores are made tile by tile: what the back ends leave out, on every device.
#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

#include "atelier/ops/attention.h"

namespace atelier::ops {

// q: [B, H, L, d]; k, v: [B, K, S, d], K divides H; S is L where `options` are causal. Their
// offset_bias is [H, L + S - 1], the same for all samples; query_sees [B, L] and key_groups [B, S].
// Returns {output [B, H, L, d] in q's dtype, log-sum-exp [B, H, L] in float32, or float64 of that;
// infinite for rows that see no key}.
std::tuple<at::Tensor, at::Tensor> tiled_attention(const at::Tensor& q, const at::Tensor& k,
                                                   const at::Tensor& v,
                                                   const AttentionOptions& options);

// Gradients of q, k and v. That of the bias is added to `*grad_bias` where it is defined, in the
// dtype of the log-sum-exp.
std::tuple<at::Tensor, at::Tensor, at::Tensor> tiled_attention_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& log_sum_exp, const AttentionOptions& options,
    at::Tensor* grad_bias);

}  // namespace atelier::ops
