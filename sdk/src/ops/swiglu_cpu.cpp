// The product of silu(gate) and up.
#include "ops/cpu/loops.h"
#ifndef ATELIER_INSTRUCTION_SET
#include "ops/cpu/rows.h"
#include "ops/swiglu.h"
#endif

namespace atelier::ops::cpu {

struct SwigluLoops {
  void (*forward)(const void* gate, int64_t gate_stride, const void* up, int64_t up_stride,
                  void* out, int64_t n, int64_t width);
  void (*backward)(const void* grad, const void* gate, int64_t gate_stride, const void* up,
                   int64_t up_stride, void* grad_gate, void* grad_up, int64_t n, int64_t width);

  static const SwigluLoops baseline[], avx2[], avx512[];
};

#ifdef ATELIER_INSTRUCTION_SET  // the loops

namespace {

template <typename T>
void swiglu(const void* gate_, Index gate_stride, const void* up_, Index up_stride, void* out_,
            Index n, Index width) {
  using A = Accum<T>;
  const T *gate = static_cast<const T*>(gate_), *up = static_cast<const T*>(up_);
  T* out = static_cast<T*>(out_);
  for (Index r = 0; r < n; ++r, gate += gate_stride, up += up_stride, out += width) {
    ATELIER_SIMD
    for (Index i = 0; i < width; ++i) {
      const A g = load(gate[i]);
      store(out[i], g * sigmoid(g) * load(up[i]));
    }
  }
}

template <typename T>
void swiglu_backward(const void* grad_, const void* gate_, Index gate_stride, const void* up_,
                     Index up_stride, void* grad_gate_, void* grad_up_, Index n, Index width) {
  using A = Accum<T>;
  const T *grad = static_cast<const T*>(grad_), *gate = static_cast<const T*>(gate_);
  const T* up = static_cast<const T*>(up_);
  T *grad_gate = static_cast<T*>(grad_gate_), *grad_up = static_cast<T*>(grad_up_);
  for (Index r = 0; r < n; ++r) {
    ATELIER_SIMD
    for (Index i = 0; i < width; ++i) {
      const A g = load(gate[i]), d = load(grad[i]), s = sigmoid(g);
      store(grad_gate[i], d * load(up[i]) * (s * (A(1) + g * (A(1) - s))));
      store(grad_up[i], d * g * s);
    }
    grad += width, grad_gate += width, grad_up += width;
    gate += gate_stride, up += up_stride;
  }
}

template <typename T>
constexpr SwigluLoops kSwiglu = {.forward = swiglu<T>, .backward = swiglu_backward<T>};

}  // namespace

constinit const SwigluLoops SwigluLoops::ATELIER_INSTRUCTION_SET[] = {
    kSwiglu<float>, kSwiglu<double>, kSwiglu<BFloat16>, kSwiglu<Half>};

#else  // tensors become pointers

namespace {

using at::Tensor;

void swiglu_forward(const Tensor& gate, const Tensor& up, Tensor& out) {
  const int64_t width = gate.size(1);
  const auto& loops = loops_for<SwigluLoops>(gate);
  for_each_chunk(chunks_of(one_sample(gate.size(0)), width), [&](const Chunk& c, int64_t) {
    loops.forward(at_element(gate, c.first * gate.stride(0)), gate.stride(0),
                  at_element(up, c.first * up.stride(0)), up.stride(0),
                  at_element(out, c.first * width), c.count, width);
  });
}

void swiglu_backward(const Tensor& grad, const Tensor& gate, const Tensor& up, Tensor& grad_gate,
                     Tensor& grad_up) {
  const int64_t width = gate.size(1);
  const auto& loops = loops_for<SwigluLoops>(gate);
  for_each_chunk(chunks_of(one_sample(gate.size(0)), width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.backward(at_element(grad, first), at_element(gate, c.first * gate.stride(0)),
                   gate.stride(0), at_element(up, c.first * up.stride(0)), up.stride(0),
                   at_element(grad_gate, first), at_element(grad_up, first), c.count, width);
  });
}

const DeviceKernels swiglu(at::kCPU, swiglu_kernels,
                           {.forward = swiglu_forward,
                            .backward = swiglu_backward,
                            .limits = kNoLimits});

}  // namespace

#endif

}  // namespace atelier::ops::cpu
