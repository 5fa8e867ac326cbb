// One call of attention among rows that are here, by the kernel that is chosen for it.
#pragma once

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/custom_class.h>

#include "atelier/host/attention_rules.h"
#include "atelier/ops/attention.h"

namespace atelier::ops {

// What a call knows beside its differentiable tensors, of which the bias is one.
struct AttentionCall : torch::CustomClassHolder {
  AttentionKernel kernel = AttentionKernel::kMath;
  AttentionOptions options;
  Segments q_rows, k_rows;
  bool is_merged = false;  // log_sum_exp_of() is asked for
  AttentionCall(Segments queries, Segments keys, AttentionOptions options)
      : options(std::move(options)), q_rows(std::move(queries)), k_rows(std::move(keys)) {}
  std::optional<double> scale() const {
    return options.scale == 0 ? std::nullopt : std::optional(options.scale);
  }
};

// The operations of one forward pass.
double flops_of(const AttentionCall& call, const at::Tensor& q);

// Throws Error{kUnsupported} where the back end that is forced cannot run.
AttentionKernel choose_kernel(const at::Tensor& q, const AttentionCall& call);
[[noreturn]] void refuse_backend(const char* backend, const char* needs);

// As attention(), with rows of queries and of keys. Returns {output [Nq, H * d], what the kernel's
// backward wants beside it...}. `bias` may be undefined.
std::vector<at::Tensor> attend(const AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& bias);

// Gradients of q, k and v from that of the output, [Nq, H, d] as `out`. `extras`: what attend()
// gave beside the output. Undefined where no sample has queries and keys. That of the bias is added
// to `grad_bias` where it is defined.
std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
    const AttentionCall& call, const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& bias, const at::Tensor& out, const at::Tensor* extras,
    const at::Tensor& grad_bias);

// Puts `part`, gradients of the rows from `first` on, to those of all rows of `of`: `whole`, which
// is made where it is not there yet.
void put_rows(at::Tensor& whole, int64_t first, const at::Tensor& part, const at::Tensor& of);

// The log-sum-exp of each row and head, [Nq, H] in float32 or float64, of what attend() gave, and
// the inverse: what attend_backward() takes for it, which may be that of more keys than those at
// hand; infinite for rows that see no key. All samples have queries and keys. Neither for kMath,
// which has none, nor for kCudnn.
at::Tensor log_sum_exp_of(const AttentionCall& call, const std::vector<at::Tensor>& attended);
std::vector<at::Tensor> extras_of(const AttentionCall& call, const at::Tensor& log_sum_exp);

}  // namespace atelier::ops
