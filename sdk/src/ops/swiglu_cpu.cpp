#include "ops/cpu/rows.h"
#include "ops/swiglu.h"

namespace atelier::ops::cpu {
namespace {

using at::Tensor;

void swiglu_forward(const Tensor& gate, const Tensor& up, Tensor& out) {
  const int64_t width = gate.size(1);
  const RowKernels& loops = loops_for(gate);
  for_each_chunk(chunks_of(one_sample(gate.size(0)), width), [&](const Chunk& c, int64_t) {
    loops.swiglu(at_element(gate, c.first * gate.stride(0)), gate.stride(0),
                 at_element(up, c.first * up.stride(0)), up.stride(0),
                 at_element(out, c.first * width), c.count, width);
  });
}

void swiglu_backward(const Tensor& grad, const Tensor& gate, const Tensor& up, Tensor& grad_gate,
                     Tensor& grad_up) {
  const int64_t width = gate.size(1);
  const RowKernels& loops = loops_for(gate);
  for_each_chunk(chunks_of(one_sample(gate.size(0)), width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.swiglu_backward(at_element(grad, first), at_element(gate, c.first * gate.stride(0)),
                          gate.stride(0), at_element(up, c.first * up.stride(0)), up.stride(0),
                          at_element(grad_gate, first), at_element(grad_up, first), c.count, width);
  });
}

const DeviceKernels swiglu(at::kCPU, swiglu_kernels,
                           {.forward = swiglu_forward,
                            .backward = swiglu_backward,
                            .limits = kNoLimits});

}  // namespace
}  // namespace atelier::ops::cpu
