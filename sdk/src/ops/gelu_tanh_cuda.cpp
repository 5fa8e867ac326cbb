#include "ops/cuda/row_call.h"
#include "ops/cuda/row_plan.h"
#include "ops/gelu_tanh.h"

namespace atelier::ops::cuda {

// Defined in gelu_tanh.cu.
extern const RowKernel gelu_tanh_rows, gelu_tanh_backward_rows, gelu_tanh_codes_rows;

namespace {

using at::Tensor;

// All values as one row.
void gelu_tanh_forward(const Tensor& x, Tensor& out) {
  Tensor flat = out.view({-1});
  const Segments rows = one_sample(1);
  RowCall call(gelu_tanh_rows, x, rows, x.numel(), false, 0);
  call.arguments.x = rows_of(x.view({-1}));
  call.arguments.out = output_of(flat);
  call.run();
}

void gelu_tanh_backward(const Tensor& grad, const Tensor& x, Tensor& grad_x) {
  Tensor flat = grad_x.view({-1});
  const Segments rows = one_sample(1);
  RowCall call(gelu_tanh_backward_rows, x, rows, x.numel(), false, 0);
  call.arguments.x = rows_of(x.view({-1}));
  call.arguments.grad = rows_of(grad.view({-1}));
  call.arguments.out = output_of(flat);
  call.run();
}

void gelu_tanh_codes(const Tensor& x, Tensor& out, RowCodes& codes) {
  const Segments all = one_sample(x.size(0));
  RowCall call(gelu_tanh_codes_rows, x, all, x.size(1), true, 0);
  call.arguments.x = rows_of(x);
  call.arguments.out = output_of(out);
  put_codes(call.arguments, codes);
  call.run();
}

const DeviceKernels gelu_tanh(row_device(), gelu_tanh_kernels,
                              {.forward = gelu_tanh_forward,
                               .backward = gelu_tanh_backward,
                               .limits = {},
                               .forward_codes = gelu_tanh_codes,
                               .widest_codes_bytes = kWidestCodesBytes});

}  // namespace
}  // namespace atelier::ops::cuda
