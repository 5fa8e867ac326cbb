#include "ops/cpu/rows.h"
#include "ops/gelu_tanh.h"

namespace atelier::ops::cpu {
namespace {

using at::Tensor;

constexpr int64_t kElementsPerChunk = 16384;

void gelu_tanh_forward(const Tensor& x, Tensor& out) {
  const RowKernels& loops = loops_for(x);
  in_threads(x.numel(), kElementsPerChunk, [&](int64_t begin, int64_t end) {
    loops.gelu_tanh(at_element(x, begin), at_element(out, begin), end - begin);
  });
}

void gelu_tanh_backward(const Tensor& grad, const Tensor& x, Tensor& grad_x) {
  const RowKernels& loops = loops_for(x);
  in_threads(x.numel(), kElementsPerChunk, [&](int64_t begin, int64_t end) {
    loops.gelu_tanh_backward(at_element(grad, begin), at_element(x, begin),
                             at_element(grad_x, begin), end - begin);
  });
}

const DeviceKernels gelu_tanh(at::kCPU, gelu_tanh_kernels,
                              {.forward = gelu_tanh_forward,
                               .backward = gelu_tanh_backward,
                               .limits = kNoLimits});

}  // namespace
}  // namespace atelier::ops::cpu
