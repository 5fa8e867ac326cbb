// The residual of a gated value.
#include "ops/cpu/loops.h"
#ifndef ATELIER_INSTRUCTION_SET
#include "ops/cpu/rows.h"
#include "ops/gate_residual.h"
#endif

namespace atelier::ops::cpu {

struct GateResidualLoops {
  void (*forward)(const void* x, const void* y, const void* gate, void* out, int64_t n,
                  int64_t width);
  // y may be null when sums is.
  void (*backward)(const void* grad, const void* y, const void* gate, void* grad_y, void* sums,
                   int64_t n, int64_t width);

  static const GateResidualLoops baseline[], avx2[], avx512[];
};

#ifdef ATELIER_INSTRUCTION_SET  // the loops

namespace {

template <typename T>
void gate_residual(const void* x_, const void* y_, const void* gate_, void* out_, Index n,
                   Index width) {
  using A = Accum<T>;
  const T *x = static_cast<const T*>(x_), *y = static_cast<const T*>(y_);
  const A* gate = static_cast<const A*>(gate_);
  T* out = static_cast<T*>(out_);
  for (Index r = 0; r < n; ++r, x += width, y += width, out += width) {
    ATELIER_SIMD
    for (Index i = 0; i < width; ++i) store(out[i], load(x[i]) + gate[i] * load(y[i]));
  }
}

template <typename T>
void gate_residual_backward(const void* grad_, const void* y_, const void* gate_, void* grad_y_,
                            void* sums_, Index n, Index width) {
  using A = Accum<T>;
  const T *grad = static_cast<const T*>(grad_), *y = static_cast<const T*>(y_);
  const A* gate = static_cast<const A*>(gate_);
  T* grad_y = static_cast<T*>(grad_y_);
  A* sums = static_cast<A*>(sums_);
  for (Index r = 0; r < n; ++r, grad += width, grad_y += width) {
    ATELIER_SIMD
    for (Index i = 0; i < width; ++i) store(grad_y[i], load(grad[i]) * gate[i]);
    if (sums != nullptr) {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) sums[i] += load(grad[i]) * load(y[i]);
      y += width;
    }
  }
}

template <typename T>
constexpr GateResidualLoops kGateResidual = {.forward = gate_residual<T>,
                                             .backward = gate_residual_backward<T>};

}  // namespace

constinit const GateResidualLoops GateResidualLoops::ATELIER_INSTRUCTION_SET[] = {
    kGateResidual<float>, kGateResidual<double>, kGateResidual<BFloat16>, kGateResidual<Half>};

#else  // tensors become pointers

namespace {

using at::Tensor;

void gate_residual_forward(const Tensor& x, const Tensor& y, const Tensor& gate,
                           const Segments& rows, Tensor& out) {
  const int64_t width = x.size(1);
  const auto& loops = loops_for<GateResidualLoops>(x);
  const Tensor gates = wide_rows(gate);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.forward(at_element(x, first), at_element(y, first), row_of(gates, c.sample),
                  at_element(out, first), c.count, width);
  });
}

void gate_residual_backward(const Tensor& grad, const Tensor& y, const Tensor& gate,
                            const Segments& rows, Tensor& grad_y, Tensor& grad_gate) {
  const int64_t width = grad.size(1);
  const auto& loops = loops_for<GateResidualLoops>(grad);
  const Tensor gates = wide_rows(gate);
  const auto chunks = chunks_of(rows, width);
  SampleSums sums(grad_gate.defined(), grad, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.backward(at_element(grad, first), at_element_or_null(y, first), row_of(gates, c.sample),
                   at_element(grad_y, first), sums.of_chunk(i), c.count, width);
  });
  put_gradient(sums.total(chunks, rows.count(), 0, width), grad_gate);
}

const DeviceKernels gate_residual(at::kCPU, gate_residual_kernels,
                                  {.forward = gate_residual_forward,
                                   .backward = gate_residual_backward,
                                   .limits = kNoLimits});

}  // namespace

#endif

}  // namespace atelier::ops::cpu
