#include "ops/channel_norm.h"

#include <cmath>

#include "atelier/ops/pointwise.h"

#include "ops/autograd_support.h"
#include "ops/pointwise_checks.h"

namespace atelier::ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constinit KernelTable<ChannelNormKernels> channel_norm_kernels("channel_norm");

namespace {

Tensor composed_channel_norm(const Tensor& x, const Tensor& gamma, bool silu) {
  const Tensor v = x.to(wide(x));
  const Tensor length = at::linalg_vector_norm(v, 2, at::IntArrayRef{1}, true).clamp_min(1e-12);
  Tensor y = v / length * std::sqrt(static_cast<double>(x.size(1))) *
             gamma.to(v.scalar_type()).view({1, -1, 1, 1});
  if (silu) y = at::silu(y);
  return y.to(x.scalar_type());
}

// Channels last: [B, H, W, C].
Tensor channel_rows(const Tensor& t) {
  return t.permute({0, 2, 3, 1}).contiguous();
}
Tensor room_of_rows(const Tensor& like) {
  return packed_like(like.permute({0, 2, 3, 1}));
}

// The inverse, in the memory format of `like`.
Tensor channels_of(const Tensor& rows, const Tensor& like) {
  return rows.permute({0, 3, 1, 2}).contiguous(like.suggest_memory_format()).tensor_data();
}

Tensor run_channel_norm(const Tensor& x, const Tensor& gamma, bool silu) {
  Tensor out = room_of_rows(x);
  channel_norm_kernels.run(&ChannelNormKernels::forward, channel_rows(x), gamma.contiguous(), silu,
                           out);
  return channels_of(out, x);
}

struct ChannelNorm : torch::autograd::Function<ChannelNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& gamma, bool silu) {
    ctx->save_for_backward({x, gamma});
    ctx->saved_data["silu"] = silu;
    ctx->set_materialize_grads(false);
    return run_channel_norm(x, gamma, silu);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(3);
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &gamma = saved[1];
    Tensor grad_rows = room_of_rows(x), grad_gamma = packed_if(ctx->needs_input_grad(1), gamma);
    channel_norm_kernels.run(&ChannelNormKernels::backward, channel_rows(grads[0]), channel_rows(x),
                             gamma.contiguous(), ctx->saved_data["silu"].toBool(), grad_rows,
                             grad_gamma);
    return {channels_of(grad_rows, x), grad_gamma, {}};
  }
};

}  // namespace

Tensor channel_norm(const Tensor& x, const Tensor& gamma, bool silu) {
  check(x.dim() == 4 && gamma.dim() == 1 && gamma.size(0) == x.size(1), "channel_norm", {x, gamma});
  if (!channel_norm_kernels.takes(x, x.size(1))) return composed_channel_norm(x, gamma, silu);
  const Tensor cast = gamma.to(x.scalar_type());
  if (needs_graph({x, cast})) return ChannelNorm::apply(x, cast, silu);
  return run_channel_norm(x, cast, silu);
}

}  // namespace atelier::ops
