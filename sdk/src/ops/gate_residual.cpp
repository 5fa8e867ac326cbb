#include "ops/gate_residual.h"

#include "atelier/ops/pointwise.h"

#include "ops/autograd_support.h"
#include "ops/per_sample.h"
#include "ops/pointwise_checks.h"

namespace atelier::ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constinit KernelTable<GateResidualKernels> gate_residual_kernels("gate_residual");

Tensor composed_gate_residual(const Tensor& x, const Tensor& y, const Tensor& gate,
                              const Segments& rows) {
  const Tensor gated = per_sample(
      rows, [](const Tensor& v, const Tensor& g) { return v * g; }, y.contiguous(), gate);
  return (x + gated).to(x.scalar_type());
}

std::array<Tensor, 2> gate_residual_backward(const Tensor& grad, const Tensor& y,
                                             const Tensor& gate, const Segments& rows,
                                             bool gate_grad) {
  Tensor grad_y = packed_like(grad), grad_gate = packed_if(gate_grad, gate);
  gate_residual_kernels.run(&GateResidualKernels::backward, grad, y.defined() ? y.contiguous() : y,
                            dense_rows(gate), rows, grad_y, grad_gate);
  return {grad_y, grad_gate};
}

namespace {

Tensor run_gate_residual(const Tensor& x, const Tensor& y, const Tensor& gate,
                         const Segments& rows) {
  Tensor out = packed_like(x);
  gate_residual_kernels.run(&GateResidualKernels::forward, x.contiguous(), y.contiguous(),
                            dense_rows(gate), rows, out);
  return out;
}

struct GateResidual : torch::autograd::Function<GateResidual> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, const Tensor& gate,
                        const Segments& rows) {
    ctx->save_for_backward({gate.requires_grad() ? y : Tensor(), gate});
    ctx->saved_data["rows"] = rows.tensor();
    ctx->set_materialize_grads(false);
    return run_gate_residual(x, y, gate, rows);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    const bool gate_grad = ctx->needs_input_grad(2);
    result[0] = grads[0];
    if (ctx->needs_input_grad(1) || gate_grad) {
      auto given = gate_residual_backward(grads[0].contiguous(), saved[0], saved[1],
                                          saved_rows(ctx), gate_grad);
      std::move(given.begin(), given.end(), result.begin() + 1);
    }
    return result;
  }
};

}  // namespace

Tensor gate_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const Segments& rows) {
  check(is_packed(x, rows) && is_alike(x, y) && modulates(gate, x, rows), "gate_residual",
        {x, y, gate});
  if (!gate_residual_kernels.takes(x)) return composed_gate_residual(x, y, gate, rows);
  if (needs_graph({x, y, gate})) return GateResidual::apply(x, y, gate, rows);
  return run_gate_residual(x, y, gate, rows);
}

}  // namespace atelier::ops
