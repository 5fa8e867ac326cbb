#include "ops/channel_norm.h"
#include "ops/cuda/rms_scale.h"
#include "ops/cuda/row_call.h"
#include "ops/cuda/row_plan.h"

namespace atelier::ops::cuda {
namespace {

using at::Tensor;

Style style_of(bool silu) {
  return silu ? Style::kChannelSilu : Style::kChannel;
}

void channel_norm_forward(const Tensor& x, const Tensor& gamma, bool silu, Tensor& out) {
  rms_scale(x, Tensor(), {gamma, Tensor(), false}, one_sample(row_count(x)), 0, style_of(silu),
            out);
}

void channel_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& gamma, bool silu,
                           Tensor& grad_x, Tensor& grad_gamma) {
  const RmsFactor factor = {gamma, Tensor(), false};
  const Tensor sums = rms_scale_backward(grad, x, factor, one_sample(row_count(x)), 0,
                                         style_of(silu), grad_gamma.defined(), grad_x);
  factor.put_weight_gradient(sums, grad_gamma);
}

const DeviceKernels channel_norm(row_device(), channel_norm_kernels,
                                 {.forward = channel_norm_forward,
                                  .backward = channel_norm_backward,
                                  .limits = {.widest_row_bytes = kWidestRowBytes}});

}  // namespace
}  // namespace atelier::ops::cuda
