#include "ops/gelu_tanh.h"

#include "atelier/ops/pointwise.h"

#include "ops/autograd_support.h"
#include "ops/pointwise_checks.h"
#include "ops/shared_codes.h"

namespace atelier::ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constinit KernelTable<GeluTanhKernels> gelu_tanh_kernels("gelu_tanh");

namespace {

Tensor run_gelu_tanh(const Tensor& x) {
  Tensor out = packed_like(x);
  if (auto codes = wanted_codes(gelu_tanh_kernels, out, /*is_for_one=*/true)) {
    Tensor rows = out.view({-1, x.size(-1)});
    gelu_tanh_kernels.run(&GeluTanhKernels::forward_codes, x.contiguous().view(rows.sizes()), rows,
                          *codes);
    SharedCodes::of_thread().put(rows, *codes, /*is_for_one=*/true);
    return out;
  }
  gelu_tanh_kernels.run(&GeluTanhKernels::forward, x.contiguous(), out);
  return out;
}

struct GeluTanh : torch::autograd::Function<GeluTanh> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    ctx->set_materialize_grads(false);
    return run_gelu_tanh(x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(1);
    const Tensor x = ctx->get_saved_variables()[0].contiguous();
    Tensor grad_x = packed_like(x);
    gelu_tanh_kernels.run(&GeluTanhKernels::backward, grads[0].contiguous(), x, grad_x);
    return {grad_x};
  }
};

}  // namespace

Tensor gelu_tanh(const Tensor& x) {
  if (!gelu_tanh_kernels.takes(x)) return at::gelu(x, "tanh");
  if (needs_graph({x})) return GeluTanh::apply(x);
  return run_gelu_tanh(x);
}

}  // namespace atelier::ops
