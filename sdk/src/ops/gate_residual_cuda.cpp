#include "ops/cuda/row_call.h"
#include "ops/gate_residual.h"

namespace atelier::ops::cuda {

// Defined in gate_residual.cu.
extern const RowKernel gate_residual_rows, gate_residual_backward_rows;

namespace {

using at::Tensor;

void gate_residual_forward(const Tensor& x, const Tensor& y, const Tensor& gate,
                           const Segments& rows, Tensor& out) {
  RowCall call(gate_residual_rows, x, rows, x.size(1), false, 0);
  call.arguments.x = rows_of(x);
  call.arguments.y = rows_of(y);
  call.arguments.by_sample = columns_of(gate, x);
  call.arguments.out = output_of(out);
  call.run();
}

void gate_residual_backward(const Tensor& grad, const Tensor& y, const Tensor& gate,
                            const Segments& rows, Tensor& grad_y, Tensor& grad_gate) {
  const bool gate_grad = grad_gate.defined();
  RowCall call(gate_residual_backward_rows, grad, rows, grad.size(1), false, gate_grad ? 1 : 0);
  call.arguments.grad = rows_of(grad);
  if (gate_grad) call.arguments.y = rows_of(y);
  call.arguments.by_sample = columns_of(gate, grad);
  call.arguments.out = output_of(grad_y);
  put_sum(call.run(), 0, grad_gate);
}

const DeviceKernels gate_residual(row_device(), gate_residual_kernels,
                                  {.forward = gate_residual_forward,
                                   .backward = gate_residual_backward,
                                   .limits = {}});

}  // namespace
}  // namespace atelier::ops::cuda
