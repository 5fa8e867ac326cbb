#include "ops/group_norm.h"

#include "atelier/ops/pointwise.h"

#include "ops/autograd_support.h"
#include "ops/pointwise_checks.h"

namespace atelier::ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constinit KernelTable<GroupNormKernels> group_norm_kernels("group_norm");

namespace {

// LibTorch's kernels take any layout on the CPU, and elsewhere [B, C, H, W] in this order alone.
Tensor in_kernel_layout(const Tensor& x) {
  return x.is_cpu() ? x : x.contiguous();
}

// {normalised, mean, 1 / standard deviation}; x in_kernel_layout().
std::tuple<Tensor, Tensor, Tensor> normalise(const Tensor& x, const Tensor& weight,
                                             const Tensor& bias, int64_t groups, double eps) {
  if (x.is_meta()) {  // LibTorch has none of meta tensors
    const Tensor sums = at::empty({x.size(0), groups}, x.options());
    return {at::empty_like(x), sums, at::empty_like(sums)};
  }
  return at::native_group_norm(x, weight, bias, x.size(0), x.size(1), x.size(2) * x.size(3), groups,
                               eps);
}

// The device's kernels for images whose channels lie side by side, where `x` has such.
const GroupNormKernels* kernels_for_pixels(const Tensor& x) {
  const bool is_dense =
      x.numel() > 0 && x.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  return is_dense ? group_norm_kernels.in_use(x) : nullptr;
}

// Images whose channels lie side by side as those kernels take them: the pixels of one below
// another's.
Tensor pixels_of(const Tensor& x) {
  return x.permute({0, 2, 3, 1}).view({-1, x.size(1)});
}
Segments images_in(const Tensor& x) {
  return Segments::uniform(x.size(0), x.size(2) * x.size(3));
}
Tensor images_of(const Tensor& pixels, const Tensor& like) {
  return pixels.view({like.size(0), like.size(2), like.size(3), like.size(1)})
      .permute({0, 3, 1, 2})
      .tensor_data();
}

Tensor compute(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t groups,
               double eps, bool silu) {
  if (const auto* kernels = kernels_for_pixels(x)) {
    const Tensor pixels = pixels_of(x);
    Tensor out = packed_like(pixels);
    kernels->forward(pixels, weight, bias, images_in(x), groups, eps, silu, out);
    return images_of(out, x);
  }
  Tensor y = std::get<0>(normalise(in_kernel_layout(x), weight, bias, groups, eps));
  if (silu) at::silu_(y);
  return y.contiguous(x.suggest_memory_format());
}

struct GroupNorm : torch::autograd::Function<GroupNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, int64_t groups, double eps, bool silu) {
    save(ctx, {x, weight, bias}, eps);
    ctx->saved_data["groups"] = groups;
    ctx->saved_data["silu"] = silu;
    return compute(x, weight, bias, groups, eps, silu);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(6);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    if (const auto* kernels = kernels_for_pixels(saved[0]))
      return fused_backward(*kernels, ctx, saved, grads[0]);
    const Tensor x = in_kernel_layout(saved[0]), &weight = saved[1], &bias = saved[2];
    const int64_t groups = ctx->saved_data["groups"].toInt();
    const auto [y, mean, rstd] = normalise(x, weight, bias, groups, saved_eps(ctx));
    Tensor grad = in_kernel_layout(grads[0].contiguous(x.suggest_memory_format()));
    if (ctx->saved_data["silu"].toBool()) grad = at::silu_backward(grad, y);
    if (x.is_meta())
      return {at::empty_like(x), at::empty_like(weight), at::empty_like(bias), {}, {}, {}};
    auto [grad_x, grad_weight, grad_bias] = at::native_group_norm_backward(
        grad, x, mean, rstd, weight, x.size(0), x.size(1), x.size(2) * x.size(3), groups,
        {ctx->needs_input_grad(0), ctx->needs_input_grad(1), ctx->needs_input_grad(2)});
    if (grad_x.defined()) result[0] = grad_x.contiguous(saved[0].suggest_memory_format());
    result[1] = grad_weight;
    result[2] = grad_bias;
    return result;
  }

 private:
  static variable_list fused_backward(const GroupNormKernels& kernels, AutogradContext* ctx,
                                      const variable_list& saved, const Tensor& grad) {
    const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const Tensor pixels = pixels_of(x);
    Tensor grad_pixels = packed_if(ctx->needs_input_grad(0), pixels),
           grad_weight = packed_if(ctx->needs_input_grad(1), weight),
           grad_bias = packed_if(ctx->needs_input_grad(2), bias);
    kernels.backward(pixels_of(grad.contiguous(at::MemoryFormat::ChannelsLast)), pixels, weight,
                     bias, images_in(x), ctx->saved_data["groups"].toInt(), saved_eps(ctx),
                     ctx->saved_data["silu"].toBool(), grad_pixels, grad_weight, grad_bias);
    const Tensor grad_x = grad_pixels.defined() ? images_of(grad_pixels, x) : Tensor();
    return {grad_x, grad_weight, grad_bias, {}, {}, {}};
  }
};

}  // namespace

Tensor group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t groups,
                  double eps, bool silu) {
  const bool fits = x.dim() == 4 && groups > 0 && x.size(1) % groups == 0 && weight.dim() == 1 &&
                    weight.size(0) == x.size(1) && bias.sizes() == weight.sizes();
  if (!fits) {
    throw Error(ErrorCode::kInvalidArgument,
                c10::str("group_norm: x ", x.sizes(), ", weight ", weight.sizes(), " and bias ",
                         bias.sizes(), " do not fit ", groups, " groups"));
  }
  const Tensor dense = x.contiguous(x.suggest_memory_format());
  if (!needs_graph({x, weight, bias})) return compute(dense, weight, bias, groups, eps, silu);
  return GroupNorm::apply(dense, weight, bias, groups, eps, silu);
}

}  // namespace atelier::ops
