#include "ops/cuda/row_call.h"
#include "ops/swiglu.h"

namespace atelier::ops::cuda {

// Defined in swiglu.cu.
extern const RowKernel swiglu_rows, swiglu_backward_rows;

namespace {

using at::Tensor;

void swiglu_forward(const Tensor& gate, const Tensor& up, Tensor& out) {
  const Segments rows = one_sample(gate.size(0));
  RowCall call(swiglu_rows, gate, rows, gate.size(1), false, 0);
  call.arguments.x = input_of(gate, gate.stride(0));
  call.arguments.y = input_of(up, up.stride(0));
  call.arguments.out = output_of(out);
  call.run();
}

void swiglu_backward(const Tensor& grad, const Tensor& gate, const Tensor& up, Tensor& grad_gate,
                     Tensor& grad_up) {
  const Segments rows = one_sample(gate.size(0));
  RowCall call(swiglu_backward_rows, gate, rows, gate.size(1), false, 0);
  call.arguments.x = input_of(gate, gate.stride(0));
  call.arguments.y = input_of(up, up.stride(0));
  call.arguments.grad = rows_of(grad);
  call.arguments.out = output_of(grad_gate);
  call.arguments.second = output_of(grad_up);
  call.run();
}

const DeviceKernels swiglu(row_device(), swiglu_kernels,
                           {.forward = swiglu_forward, .backward = swiglu_backward, .limits = {}});

}  // namespace
}  // namespace atelier::ops::cuda
