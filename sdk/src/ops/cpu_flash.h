// LibTorch's flash attention of the CPU, in tiles between which a stop is heard.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace atelier::ops {

// [B, H, L, d], packed as [B, L, H, d]; `like`: of these sizes.
at::Tensor empty_heads(const at::Tensor& like);

// q: [B, H, L, d], k and v: [B, K, S, d], H a multiple of K. Returns the output [B, H, L, d] and
// the logarithm of the sum of exponentials of each row, [B, H, L].
std::tuple<at::Tensor, at::Tensor> cpu_flash(const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, bool causal,
                                             std::optional<double> scale);

// Gradients of q, k and v, from what cpu_flash() gave.
std::tuple<at::Tensor, at::Tensor, at::Tensor> cpu_flash_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& log_sum_exp, bool causal, std::optional<double> scale);

}  // namespace atelier::ops
