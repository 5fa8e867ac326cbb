// Norms by mean and deviation.
#include "ops/cpu/loops.h"
#ifndef ATELIER_INSTRUCTION_SET
#include "ops/cpu/rows.h"
#include "ops/layer_norm.h"
#endif

namespace atelier::ops::cpu {

struct LayerNormLoops {
  // (x - mean) / deviation * factor + shift
  void (*norm_scale)(const void* x, const void* shift, const void* factor, void* out, int64_t n,
                     int64_t width, double eps);
  // `added` may be null. sums: [shift | factor].
  void (*norm_scale_backward)(const void* grad, const void* x, const void* factor,
                              const void* added, void* grad_x, void* sums, int64_t n, int64_t width,
                              double eps);
  void (*gate_residual_norm_scale)(const void* x, const void* y, const void* gate,
                                   const void* shift, const void* factor, void* sum, void* out,
                                   int64_t n, int64_t width, double eps);

  static const LayerNormLoops baseline[], avx2[], avx512[];
};

#ifdef ATELIER_INSTRUCTION_SET  // the loops

namespace {

// 1 / sqrt(variance + eps), and the mean.
template <typename T>
inline Accum<T> moments(const T* x, Index width, double eps, Accum<T>& mean) {
  using A = Accum<T>;
  A sum = 0;
  ATELIER_SIMD_SUM(sum)
  for (Index i = 0; i < width; ++i) sum += load(x[i]);
  const A m = sum / A(width);
  A squares = 0;
  ATELIER_SIMD_SUM(squares)
  for (Index i = 0; i < width; ++i) {
    const A d = load(x[i]) - m;
    squares += d * d;
  }
  mean = m;
  return A(1) / square_root(squares / A(width) + A(eps));
}

template <typename T>
inline void norm_scale_row(const T* x, const Accum<T>* shift, const Accum<T>* factor, T* out,
                           Index width, double eps) {
  using A = Accum<T>;
  A mean;
  const A inverse = moments(x, width, eps, mean);
  ATELIER_SIMD
  for (Index i = 0; i < width; ++i) {
    store(out[i], (load(x[i]) - mean) * inverse * factor[i] + shift[i]);
  }
}

template <typename T>
void norm_scale(const void* x_, const void* shift, const void* factor, void* out_, Index n,
                Index width, double eps) {
  using A = Accum<T>;
  const T* x = static_cast<const T*>(x_);
  T* out = static_cast<T*>(out_);
  for (Index r = 0; r < n; ++r, x += width, out += width) {
    norm_scale_row(x, static_cast<const A*>(shift), static_cast<const A*>(factor), out, width, eps);
  }
}

template <typename T>
void norm_scale_backward(const void* grad_, const void* x_, const void* factor_, const void* added_,
                         void* grad_x_, void* sums_, Index n, Index width, double eps) {
  using A = Accum<T>;
  const T *grad = static_cast<const T*>(grad_), *x = static_cast<const T*>(x_);
  const A* factor = static_cast<const A*>(factor_);
  const T* added = static_cast<const T*>(added_);
  T* grad_x = static_cast<T*>(grad_x_);
  A* sums = static_cast<A*>(sums_);
  for (Index r = 0; r < n; ++r, grad += width, x += width, grad_x += width) {
    A mean;
    const A inverse = moments(x, width, eps, mean);
    A sum = 0, dot = 0;
    ATELIER_SIMD_SUM(sum, dot)
    for (Index i = 0; i < width; ++i) {
      const A g = load(grad[i]) * factor[i];
      sum += g;
      dot += g * ((load(x[i]) - mean) * inverse);
    }
    sum /= A(width);
    dot /= A(width);
    if (added != nullptr) {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) {
        const A g = load(grad[i]) * factor[i];
        const A normal = (load(x[i]) - mean) * inverse;
        store(grad_x[i], load(added[i]) + inverse * (g - sum - normal * dot));
      }
      added += width;
    } else {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) {
        const A g = load(grad[i]) * factor[i];
        const A normal = (load(x[i]) - mean) * inverse;
        store(grad_x[i], inverse * (g - sum - normal * dot));
      }
    }
    if (sums != nullptr) {
      A *of_shift = sums, *of_factor = sums + width;
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) {
        const A g = load(grad[i]);
        of_shift[i] += g;
        of_factor[i] += g * ((load(x[i]) - mean) * inverse);
      }
    }
  }
}

template <typename T>
void gate_residual_norm_scale(const void* x_, const void* y_, const void* gate_, const void* shift,
                              const void* factor, void* sum_, void* out_, Index n, Index width,
                              double eps) {
  using A = Accum<T>;
  const T *x = static_cast<const T*>(x_), *y = static_cast<const T*>(y_);
  const A* gate = static_cast<const A*>(gate_);
  T *sum = static_cast<T*>(sum_), *out = static_cast<T*>(out_);
  for (Index r = 0; r < n; ++r, x += width, y += width, sum += width, out += width) {
    ATELIER_SIMD
    for (Index i = 0; i < width; ++i) store(sum[i], load(x[i]) + gate[i] * load(y[i]));
    norm_scale_row(sum, static_cast<const A*>(shift), static_cast<const A*>(factor), out, width,
                   eps);
  }
}

template <typename T>
constexpr LayerNormLoops kLayerNorm = {.norm_scale = norm_scale<T>,
                                       .norm_scale_backward = norm_scale_backward<T>,
                                       .gate_residual_norm_scale = gate_residual_norm_scale<T>};

}  // namespace

constinit const LayerNormLoops LayerNormLoops::ATELIER_INSTRUCTION_SET[] = {
    kLayerNorm<float>, kLayerNorm<double>, kLayerNorm<BFloat16>, kLayerNorm<Half>};

#else  // tensors become pointers

namespace {

using at::Tensor;

// (x - mean) / deviation * factor + shift; shift and factor: [S, D] in the type of sums.
void norm_scale(const Tensor& x, const Tensor& shift, const Tensor& factor, const Segments& rows,
                double eps, Tensor& out) {
  const int64_t width = x.size(-1);
  const auto& loops = loops_for<LayerNormLoops>(x);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    loops.norm_scale(at_element(x, c.first * width), row_of(shift, c.sample),
                     row_of(factor, c.sample), at_element(out, c.first * width), c.count, width,
                     eps);
  });
}

// `added` may be undefined; so may the last two, neither or both.
void norm_scale_backward(const Tensor& grad, const Tensor& x, const Tensor& factor,
                         const Tensor& added, const Segments& rows, double eps, Tensor& grad_x,
                         Tensor& grad_shift, Tensor& grad_factor) {
  const int64_t width = x.size(-1);
  const auto& loops = loops_for<LayerNormLoops>(x);
  const auto chunks = chunks_of(rows, width);
  SampleSums sums(grad_shift.defined(), x, chunks, 2 * width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.norm_scale_backward(at_element(grad, first), at_element(x, first),
                              row_of(factor, c.sample), at_element_or_null(added, first),
                              at_element(grad_x, first), sums.of_chunk(i), c.count, width, eps);
  });
  put_gradient(sums.total(chunks, rows.count(), 0, width), grad_shift);
  put_gradient(sums.total(chunks, rows.count(), width, width), grad_factor);
}

void layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                        Tensor& out) {
  const auto row = [&](const Tensor& t) { return t.to(wide(x)).unsqueeze(0); };
  norm_scale(x, row(bias), row(weight), one_sample(row_count(x)), eps, out);
}

void layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps,
                         Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  norm_scale_backward(grad, x, weight.to(wide(x)).unsqueeze(0), Tensor(), one_sample(row_count(x)),
                      eps, grad_x, grad_bias, grad_weight);
}

void norm_modulate_forward(const Tensor& x, const Tensor& shift, const Tensor& scale,
                           const Segments& rows, double eps, Tensor& out) {
  norm_scale(x, wide_rows(shift), wide_rows(scale) + 1, rows, eps, out);
}

void norm_modulate_backward(const Tensor& grad, const Tensor& x, const Tensor& scale,
                            const Tensor& added, const Segments& rows, double eps, Tensor& grad_x,
                            Tensor& grad_shift, Tensor& grad_scale) {
  norm_scale_backward(grad, x, wide_rows(scale) + 1, added, rows, eps, grad_x, grad_shift,
                      grad_scale);
}

void gate_residual_norm_modulate_forward(const Tensor& x, const Tensor& y, const Tensor& gate,
                                         const Tensor& shift, const Tensor& scale,
                                         const Segments& rows, double eps, Tensor& sum,
                                         Tensor& out) {
  const int64_t width = x.size(1);
  const auto& loops = loops_for<LayerNormLoops>(x);
  const Tensor gates = wide_rows(gate), shifts = wide_rows(shift), factors = wide_rows(scale) + 1;
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.gate_residual_norm_scale(at_element(x, first), at_element(y, first),
                                   row_of(gates, c.sample), row_of(shifts, c.sample),
                                   row_of(factors, c.sample), at_element(sum, first),
                                   at_element(out, first), c.count, width, eps);
  });
}

const DeviceKernels layer_norm(at::kCPU, layer_norm_kernels,
                               {.forward = layer_norm_forward,
                                .backward = layer_norm_backward,
                                .limits = kNoLimits});
const DeviceKernels norm_modulate(at::kCPU, norm_modulate_kernels,
                                  {.forward = norm_modulate_forward,
                                   .backward = norm_modulate_backward,
                                   .limits = kNoLimits});
const DeviceKernels gate_residual_norm_modulate(at::kCPU, gate_residual_norm_modulate_kernels,
                                                {.forward = gate_residual_norm_modulate_forward,
                                                 .limits = kNoLimits});

}  // namespace

#endif

}  // namespace atelier::ops::cpu
