// GELU with the tanh approximation.
#include "ops/cpu/loops.h"
#ifndef ATELIER_INSTRUCTION_SET
#include "ops/cpu/rows.h"
#include "ops/gelu_tanh.h"
#endif

namespace atelier::ops::cpu {

struct GeluTanhLoops {
  void (*forward)(const void* x, void* out, int64_t n);
  void (*backward)(const void* grad, const void* x, void* grad_x, int64_t n);

  static const GeluTanhLoops baseline[], avx2[], avx512[];
};

#ifdef ATELIER_INSTRUCTION_SET  // the loops

namespace {

// x * sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x³), which is 0.5 x (1 + tanh u).
template <typename A>
inline A gelu_slope(A x) {
  return A(1.5957691216057308) * (x + A(0.044715) * x * x * x);
}

template <typename T>
void gelu_tanh(const void* x_, void* out_, Index n) {
  using A = Accum<T>;
  const T* x = static_cast<const T*>(x_);
  T* out = static_cast<T*>(out_);
  ATELIER_SIMD
  for (Index i = 0; i < n; ++i) {
    const A v = load(x[i]);
    store(out[i], v * sigmoid(gelu_slope(v)));
  }
}

template <typename T>
void gelu_tanh_backward(const void* grad_, const void* x_, void* grad_x_, Index n) {
  using A = Accum<T>;
  const T *grad = static_cast<const T*>(grad_), *x = static_cast<const T*>(x_);
  T* grad_x = static_cast<T*>(grad_x_);
  ATELIER_SIMD
  for (Index i = 0; i < n; ++i) {
    const A v = load(x[i]), s = sigmoid(gelu_slope(v));
    const A slope = A(1.5957691216057308) * (A(1) + A(3 * 0.044715) * v * v);
    store(grad_x[i], load(grad[i]) * (s + v * s * (A(1) - s) * slope));
  }
}

template <typename T>
constexpr GeluTanhLoops kGeluTanh = {.forward = gelu_tanh<T>, .backward = gelu_tanh_backward<T>};

}  // namespace

constinit const GeluTanhLoops GeluTanhLoops::ATELIER_INSTRUCTION_SET[] = {
    kGeluTanh<float>, kGeluTanh<double>, kGeluTanh<BFloat16>, kGeluTanh<Half>};

#else  // tensors become pointers

namespace {

using at::Tensor;

constexpr int64_t kElementsPerChunk = 16384;

void gelu_tanh_forward(const Tensor& x, Tensor& out) {
  const auto& loops = loops_for<GeluTanhLoops>(x);
  in_threads(x.numel(), kElementsPerChunk, [&](int64_t begin, int64_t end) {
    loops.forward(at_element(x, begin), at_element(out, begin), end - begin);
  });
}

void gelu_tanh_backward(const Tensor& grad, const Tensor& x, Tensor& grad_x) {
  const auto& loops = loops_for<GeluTanhLoops>(x);
  in_threads(x.numel(), kElementsPerChunk, [&](int64_t begin, int64_t end) {
    loops.backward(at_element(grad, begin), at_element(x, begin), at_element(grad_x, begin),
                   end - begin);
  });
}

const DeviceKernels gelu_tanh(at::kCPU, gelu_tanh_kernels,
                              {.forward = gelu_tanh_forward,
                               .backward = gelu_tanh_backward,
                               .limits = kNoLimits});

}  // namespace

#endif

}  // namespace atelier::ops::cpu
