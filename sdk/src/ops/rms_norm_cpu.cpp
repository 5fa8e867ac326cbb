// Norms by the root of the mean square.
#include "ops/cpu/loops.h"
#ifndef ATELIER_INSTRUCTION_SET
#include "ops/cpu/rows.h"
#include "ops/rms_norm.h"
#endif

namespace atelier::ops::cpu {

struct RmsNormLoops {
  void (*rms_norm)(const void* x, const void* weight, void* out, int64_t n, int64_t width,
                   double eps);
  void (*rms_norm_backward)(const void* grad, const void* x, const void* weight, void* grad_x,
                            void* sums, int64_t n, int64_t width, double eps);
  // [added +] x / rms(x) * factor. `added` may be null.
  void (*rms_scale)(const void* x, const void* added, const void* factor, void* out, int64_t n,
                    int64_t width, double eps);
  // sums: of factor. `added` is added to the gradient of x and may be null.
  void (*rms_scale_backward)(const void* grad, const void* x, const void* factor, const void* added,
                             void* grad_x, void* sums, int64_t n, int64_t width, double eps);

  static const RmsNormLoops baseline[], avx2[], avx512[];
};

#ifdef ATELIER_INSTRUCTION_SET  // the loops

namespace {

template <typename T>
void rms_norm(const void* x_, const void* weight_, void* out_, Index n, Index width, double eps) {
  using A = Accum<T>;
  const T *x = static_cast<const T*>(x_), *weight = static_cast<const T*>(weight_);
  T* out = static_cast<T*>(out_);
  for (Index r = 0; r < n; ++r, x += width, out += width) {
    const A inverse = inverse_rms(x, width, eps);
    ATELIER_SIMD
    for (Index i = 0; i < width; ++i) {
      store(out[i], rounded<T>(load(x[i]) * inverse) * load(weight[i]));
    }
  }
}

template <typename T>
void rms_norm_backward(const void* grad_, const void* x_, const void* weight_, void* grad_x_,
                       void* sums_, Index n, Index width, double eps) {
  using A = Accum<T>;
  const T *grad = static_cast<const T*>(grad_), *x = static_cast<const T*>(x_);
  const T* weight = static_cast<const T*>(weight_);
  T* grad_x = static_cast<T*>(grad_x_);
  A* sums = static_cast<A*>(sums_);
  for (Index r = 0; r < n; ++r, grad += width, x += width, grad_x += width) {
    const A inverse = inverse_rms(x, width, eps);
    A dot = 0;
    ATELIER_SIMD_SUM(dot)
    for (Index i = 0; i < width; ++i) {
      dot += load(grad[i]) * load(weight[i]) * (load(x[i]) * inverse);
    }
    dot /= A(width);
    ATELIER_SIMD
    for (Index i = 0; i < width; ++i) {
      const A g = load(grad[i]) * load(weight[i]);
      store(grad_x[i], inverse * (g - load(x[i]) * inverse * dot));
    }
    if (sums != nullptr) {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) sums[i] += load(grad[i]) * (load(x[i]) * inverse);
    }
  }
}

template <typename T>
void rms_scale(const void* x_, const void* added_, const void* factor_, void* out_, Index n,
               Index width, double eps) {
  using A = Accum<T>;
  const T *x = static_cast<const T*>(x_), *added = static_cast<const T*>(added_);
  const A* factor = static_cast<const A*>(factor_);
  T* out = static_cast<T*>(out_);
  for (Index r = 0; r < n; ++r, x += width, out += width) {
    const A inverse = inverse_rms(x, width, eps);
    if (added != nullptr) {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i)
        store(out[i], load(added[i]) + load(x[i]) * inverse * factor[i]);
      added += width;
    } else {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) store(out[i], load(x[i]) * inverse * factor[i]);
    }
  }
}

template <typename T>
void rms_scale_backward(const void* grad_, const void* x_, const void* factor_, const void* added_,
                        void* grad_x_, void* sums_, Index n, Index width, double eps) {
  using A = Accum<T>;
  const T *grad = static_cast<const T*>(grad_), *x = static_cast<const T*>(x_);
  const A* factor = static_cast<const A*>(factor_);
  const T* added = static_cast<const T*>(added_);
  T* grad_x = static_cast<T*>(grad_x_);
  A* sums = static_cast<A*>(sums_);
  for (Index r = 0; r < n; ++r, grad += width, x += width, grad_x += width) {
    const A inverse = inverse_rms(x, width, eps);
    A dot = 0;
    ATELIER_SIMD_SUM(dot)
    for (Index i = 0; i < width; ++i) dot += load(grad[i]) * factor[i] * (load(x[i]) * inverse);
    dot /= A(width);
    if (sums != nullptr) {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) sums[i] += load(grad[i]) * (load(x[i]) * inverse);
    }
    if (added != nullptr) {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) {
        const A g = load(grad[i]) * factor[i];
        store(grad_x[i], load(added[i]) + inverse * (g - load(x[i]) * inverse * dot));
      }
      added += width;
    } else {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) {
        const A g = load(grad[i]) * factor[i];
        store(grad_x[i], inverse * (g - load(x[i]) * inverse * dot));
      }
    }
  }
}

template <typename T>
constexpr RmsNormLoops kRmsNorm = {.rms_norm = rms_norm<T>,
                                   .rms_norm_backward = rms_norm_backward<T>,
                                   .rms_scale = rms_scale<T>,
                                   .rms_scale_backward = rms_scale_backward<T>};

}  // namespace

constinit const RmsNormLoops RmsNormLoops::ATELIER_INSTRUCTION_SET[] = {
    kRmsNorm<float>, kRmsNorm<double>, kRmsNorm<BFloat16>, kRmsNorm<Half>};

#else  // tensors become pointers

namespace {

using at::Tensor;

void rms_norm_forward(const Tensor& x, const Tensor& weight, double eps, Tensor& out) {
  const int64_t width = x.size(-1);
  const auto& loops = loops_for<RmsNormLoops>(x);
  for_each_chunk(chunks_of(one_sample(row_count(x)), width), [&](const Chunk& c, int64_t) {
    loops.rms_norm(at_element(x, c.first * width), weight.const_data_ptr(),
                   at_element(out, c.first * width), c.count, width, eps);
  });
}

void rms_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps,
                       Tensor& grad_x, Tensor& grad_weight) {
  const int64_t width = x.size(-1);
  const auto& loops = loops_for<RmsNormLoops>(x);
  const auto chunks = chunks_of(one_sample(row_count(x)), width);
  SampleSums sums(grad_weight.defined(), x, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.rms_norm_backward(at_element(grad, first), at_element(x, first), weight.const_data_ptr(),
                            at_element(grad_x, first), sums.of_chunk(i), c.count, width, eps);
  });
  put_gradient(sums.total(chunks, 1, 0, width), grad_weight);
}

// What a normal row is multiplied with, [S, D] in the type of sums: the weight, times what a sample
// has, 1 + a scale or the tanh of a gate, where it is defined.
struct RmsFactor {
  RmsFactor(const Tensor& weight_of_x, const Tensor& of_sample, bool is_gate,
            const Segments& samples)
      : weight(weight_of_x.to(wide(weight_of_x))), is_gate(is_gate) {
    if (of_sample.defined()) {
      const Tensor values = of_sample.to(wide(of_sample));
      by_sample = is_gate ? at::tanh(values) : values + 1;
    }
    rows = by_sample.defined() ? (weight * by_sample).contiguous()
                               : weight.expand({samples.count(), weight.size(0)}).contiguous();
  }

  const void* row(int64_t sample) const { return row_of(rows, sample); }
  // Gradients that are wanted, from the sums over the rows of each sample, [S, D].
  void put_weight_gradient(const Tensor& sums, Tensor& gradient) const {
    if (gradient.defined()) gradient.copy_((by_sample.defined() ? sums * by_sample : sums).sum(0));
  }
  void put_sample_gradient(const Tensor& sums, Tensor& gradient) const {
    if (!gradient.defined()) return;
    const Tensor result = sums * weight;
    gradient.copy_(is_gate ? result * (1 - by_sample.square()) : result);
  }

  Tensor weight, by_sample, rows;
  bool is_gate;
};

void rms_scale(const Tensor& x, const Tensor& added, const RmsFactor& factor, const Segments& rows,
               double eps, Tensor& out) {
  const int64_t width = x.size(1);
  const auto& loops = loops_for<RmsNormLoops>(x);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.rms_scale(at_element(x, first), at_element_or_null(added, first), factor.row(c.sample),
                    at_element(out, first), c.count, width, eps);
  });
}

// Returns the sums over the rows of each sample when they are `wanted`.
Tensor rms_scale_backward(const Tensor& grad, const Tensor& x, const RmsFactor& factor,
                          const Segments& rows, double eps, bool wanted, Tensor& grad_x) {
  const int64_t width = x.size(1);
  const auto& loops = loops_for<RmsNormLoops>(x);
  const auto chunks = chunks_of(rows, width);
  SampleSums sums(wanted, x, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.rms_scale_backward(at_element(grad, first), at_element(x, first), factor.row(c.sample),
                             nullptr, at_element(grad_x, first), sums.of_chunk(i), c.count, width,
                             eps);
  });
  return sums.total(chunks, rows.count(), 0, width);
}

void rms_norm_modulate_forward(const Tensor& x, const Tensor& weight, const Tensor& scale,
                               const Segments& rows, double eps, Tensor& out) {
  rms_scale(x, Tensor(), {weight, scale, false, rows}, rows, eps, out);
}

// The gradients of a norm's rows, of its weight and of what a sample has.
void factor_backward(const Tensor& grad, const Tensor& x, const RmsFactor& factor,
                     const Segments& rows, double eps, Tensor& grad_x, Tensor& grad_weight,
                     Tensor& grad_by_sample) {
  const Tensor sums = rms_scale_backward(grad, x, factor, rows, eps,
                                         grad_weight.defined() || grad_by_sample.defined(), grad_x);
  factor.put_weight_gradient(sums, grad_weight);
  factor.put_sample_gradient(sums, grad_by_sample);
}

void rms_norm_modulate_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                const Tensor& scale, const Segments& rows, double eps,
                                Tensor& grad_x, Tensor& grad_weight, Tensor& grad_scale) {
  factor_backward(grad, x, {weight, scale, false, rows}, rows, eps, grad_x, grad_weight,
                  grad_scale);
}

void rms_gate_residual_forward(const Tensor& x, const Tensor& y, const Tensor& weight,
                               const Tensor& gate, const Segments& rows, double eps, Tensor& out) {
  rms_scale(y, x, {weight, gate, true, rows}, rows, eps, out);
}

void rms_gate_residual_backward(const Tensor& grad, const Tensor& y, const Tensor& weight,
                                const Tensor& gate, const Segments& rows, double eps,
                                Tensor& grad_y, Tensor& grad_weight, Tensor& grad_gate) {
  factor_backward(grad, y, {weight, gate, true, rows}, rows, eps, grad_y, grad_weight, grad_gate);
}

void rms_gate_residual_norm_modulate_forward(const Tensor& x, const Tensor& y, const Tensor& weight,
                                             const Tensor& gate, const Tensor& next_weight,
                                             const Tensor& scale, const Segments& rows, double eps,
                                             Tensor& sum, Tensor& out) {
  const int64_t width = x.size(1);
  const auto& loops = loops_for<RmsNormLoops>(x);
  const RmsFactor gated(weight, gate, true, rows), scaled(next_weight, scale, false, rows);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    for (int64_t r = c.first; r < c.first + c.count; ++r) {
      const int64_t at = r * width;
      loops.rms_scale(at_element(y, at), at_element(x, at), gated.row(c.sample),
                      at_element(sum, at), 1, width, eps);
      loops.rms_scale(at_element(sum, at), nullptr, scaled.row(c.sample), at_element(out, at), 1,
                      width, eps);
    }
  });
}

void rms_gate_residual_norm_modulate_backward(const Tensor& grad, const Tensor& grad_sum,
                                              const Tensor& x, const Tensor& y,
                                              const Tensor& weight, const Tensor& gate,
                                              const Tensor& next_weight, const Tensor& scale,
                                              const Segments& rows, double eps,
                                              RmsGateResidualNormModulateGradients& to) {
  const int64_t width = x.size(1);
  const auto& loops = loops_for<RmsNormLoops>(x);
  const RmsFactor gated(weight, gate, true, rows), scaled(next_weight, scale, false, rows);
  const auto chunks = chunks_of(rows, width);
  // The sum is made again, row by row.
  Tensor sums = at::empty({static_cast<int64_t>(chunks.size()), width}, x.options());
  SampleSums of_gate(to.weight.defined() || to.gate.defined(), x, chunks, width);
  SampleSums of_scale(to.next_weight.defined() || to.scale.defined(), x, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    char* const sum = at_element(sums, i * width);
    for (int64_t r = c.first; r < c.first + c.count; ++r) {
      const int64_t at = r * width;
      loops.rms_scale(at_element(y, at), at_element(x, at), gated.row(c.sample), sum, 1, width,
                      eps);
      loops.rms_scale_backward(at_element(grad, at), sum, scaled.row(c.sample),
                               at_element_or_null(grad_sum, at), at_element(to.x, at),
                               of_scale.of_chunk(i), 1, width, eps);
      loops.rms_scale_backward(at_element(to.x, at), at_element(y, at), gated.row(c.sample),
                               nullptr, at_element(to.y, at), of_gate.of_chunk(i), 1, width, eps);
    }
  });
  const Tensor gate_sums = of_gate.total(chunks, rows.count(), 0, width);
  const Tensor scale_sums = of_scale.total(chunks, rows.count(), 0, width);
  gated.put_weight_gradient(gate_sums, to.weight);
  gated.put_sample_gradient(gate_sums, to.gate);
  scaled.put_weight_gradient(scale_sums, to.next_weight);
  scaled.put_sample_gradient(scale_sums, to.scale);
}

const DeviceKernels rms_norm(at::kCPU, rms_norm_kernels,
                             {.forward = rms_norm_forward,
                              .backward = rms_norm_backward,
                              .limits = kNoLimits});
const DeviceKernels rms_norm_modulate(at::kCPU, rms_norm_modulate_kernels,
                                      {.forward = rms_norm_modulate_forward,
                                       .backward = rms_norm_modulate_backward,
                                       .limits = kNoLimits});
const DeviceKernels rms_gate_residual(at::kCPU, rms_gate_residual_kernels,
                                      {.forward = rms_gate_residual_forward,
                                       .backward = rms_gate_residual_backward,
                                       .limits = kNoLimits});
const DeviceKernels rms_gate_residual_norm_modulate(
    at::kCPU, rms_gate_residual_norm_modulate_kernels,
    {.forward = rms_gate_residual_norm_modulate_forward,
     .backward = rms_gate_residual_norm_modulate_backward,
     .limits = kNoLimits});

}  // namespace

#endif

}  // namespace atelier::ops::cpu
