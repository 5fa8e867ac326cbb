#include "ops/swiglu.h"

#include "atelier/ops/pointwise.h"

#include "ops/autograd_support.h"
#include "ops/pointwise_checks.h"

namespace atelier::ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constinit KernelTable<SwigluKernels> swiglu_kernels("swiglu");

namespace {

// Rows as [N, D].
Tensor flat_rows(const Tensor& t) {
  return dense_rows(t.reshape({-1, t.size(-1)}));
}

// [N, D]
Tensor run_swiglu(const Tensor& gate, const Tensor& up) {
  const Tensor gates = flat_rows(gate);
  Tensor out = packed_like(gates);
  swiglu_kernels.run(&SwigluKernels::forward, gates, flat_rows(up), out);
  return out;
}

struct Swiglu : torch::autograd::Function<Swiglu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    ctx->save_for_backward({gate, up});
    ctx->set_materialize_grads(false);
    return at::_unsafe_view(run_swiglu(gate, up), gate.sizes());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(2);
    const variable_list saved = ctx->get_saved_variables();
    const Tensor gate = flat_rows(saved[0]), up = flat_rows(saved[1]);
    Tensor grad_gate = packed_like(gate), grad_up = packed_like(up);
    swiglu_kernels.run(&SwigluKernels::backward, flat_rows(grads[0]).contiguous(), gate, up,
                       grad_gate, grad_up);
    return {grad_gate.view(saved[0].sizes()), grad_up.view(saved[1].sizes())};
  }
};

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  check(gate.dim() >= 1 && is_alike(gate, up), "swiglu", {gate, up});
  if (!swiglu_kernels.takes(gate)) return at::silu(gate) * up;
  if (needs_graph({gate, up})) return Swiglu::apply(gate, up);
  return run_swiglu(gate, up).view(gate.sizes());
}

}  // namespace atelier::ops
