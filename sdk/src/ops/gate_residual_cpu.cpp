#include "ops/cpu/rows.h"
#include "ops/gate_residual.h"

namespace atelier::ops::cpu {
namespace {

using at::Tensor;

void gate_residual_forward(const Tensor& x, const Tensor& y, const Tensor& gate,
                           const Segments& rows, Tensor& out) {
  const int64_t width = x.size(1);
  const RowKernels& loops = loops_for(x);
  const Tensor gates = wide_rows(gate);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.gate_residual(at_element(x, first), at_element(y, first), row_of(gates, c.sample),
                        at_element(out, first), c.count, width);
  });
}

void gate_residual_backward(const Tensor& grad, const Tensor& y, const Tensor& gate,
                            const Segments& rows, Tensor& grad_y, Tensor& grad_gate) {
  const int64_t width = grad.size(1);
  const RowKernels& loops = loops_for(grad);
  const Tensor gates = wide_rows(gate);
  const auto chunks = chunks_of(rows, width);
  SampleSums sums(grad_gate.defined(), grad, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.gate_residual_backward(at_element(grad, first), at_element_or_null(y, first),
                                 row_of(gates, c.sample), at_element(grad_y, first),
                                 sums.of_chunk(i), c.count, width);
  });
  put_gradient(sums.total(chunks, rows.count(), 0, width), grad_gate);
}

const DeviceKernels gate_residual(at::kCPU, gate_residual_kernels,
                                  {.forward = gate_residual_forward,
                                   .backward = gate_residual_backward,
                                   .limits = kNoLimits});

}  // namespace
}  // namespace atelier::ops::cpu
