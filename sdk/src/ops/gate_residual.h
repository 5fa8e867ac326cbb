// x + gate * y.
#pragma once

#include "atelier/segments.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

struct GateResidualKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& x, const Tensor& y, const Tensor& gate, const Segments& rows,
                  Tensor& out);
  // The gradient of x is `grad`. y may be undefined where that of the gate is not wanted.
  void (*backward)(const Tensor& grad, const Tensor& y, const Tensor& gate, const Segments& rows,
                   Tensor& grad_y, Tensor& grad_gate);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<GateResidualKernels> gate_residual_kernels;

at::Tensor composed_gate_residual(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                                  const Segments& rows);

// {y, gate} from dense `grad`; undefined where not wanted. `y` may be undefined like the kernel's.
std::array<at::Tensor, 2> gate_residual_backward(const at::Tensor& grad, const at::Tensor& y,
                                                 const at::Tensor& gate, const Segments& rows,
                                                 bool gate_grad);

}  // namespace atelier::ops
