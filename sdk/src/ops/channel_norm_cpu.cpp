// The norm of a pixel's channels.
#include "ops/cpu/loops.h"
#ifndef ATELIER_INSTRUCTION_SET
#include "ops/channel_norm.h"
#include "ops/cpu/rows.h"
#endif

namespace atelier::ops::cpu {

struct ChannelNormLoops {
  void (*forward)(const void* x, const void* gamma, bool silu, void* out, int64_t n, int64_t width);
  void (*backward)(const void* grad, const void* x, const void* gamma, bool silu, void* grad_x,
                   void* sums, int64_t n, int64_t width);

  static const ChannelNormLoops baseline[], avx2[], avx512[];
};

#ifdef ATELIER_INSTRUCTION_SET  // the loops

namespace {

// 1 / max(‖x‖, 1e-12)
template <typename T>
inline Accum<T> inverse_length(const T* x, Index width, bool& tiny) {
  using A = Accum<T>;
  A squares = 0;
  ATELIER_SIMD_SUM(squares)
  for (Index i = 0; i < width; ++i) {
    const A v = load(x[i]);
    squares += v * v;
  }
  const A length = square_root(squares);
  tiny = length < A(1e-12);
  return A(1) / (tiny ? A(1e-12) : length);
}

template <typename T>
void channel_norm(const void* x_, const void* gamma_, bool silu, void* out_, Index n, Index width) {
  using A = Accum<T>;
  const T *x = static_cast<const T*>(x_), *gamma = static_cast<const T*>(gamma_);
  T* out = static_cast<T*>(out_);
  const A root = square_root(A(width));
  for (Index r = 0; r < n; ++r, x += width, out += width) {
    bool tiny;
    const A factor = inverse_length(x, width, tiny) * root;
    if (silu) {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) {
        const A v = load(x[i]) * factor * load(gamma[i]);
        store(out[i], v * sigmoid(v));
      }
    } else {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) store(out[i], load(x[i]) * factor * load(gamma[i]));
    }
  }
}

// The gradient of v = normal * gamma, from that of v or of silu(v).
template <typename A>
inline A before_silu(A grad, A v, bool silu) {
  if (!silu) return grad;
  const A s = sigmoid(v);
  return grad * (s * (A(1) + v * (A(1) - s)));
}

template <typename T, bool kSilu>
void channel_norm_backward_rows(const T* grad, const T* x, const T* gamma, T* grad_x,
                                Accum<T>* sums, Index n, Index width) {
  using A = Accum<T>;
  const A root = square_root(A(width));
  for (Index r = 0; r < n; ++r, grad += width, x += width, grad_x += width) {
    bool tiny;
    const A inverse = inverse_length(x, width, tiny), factor = inverse * root;
    A dot = 0;
    ATELIER_SIMD_SUM(dot)
    for (Index i = 0; i < width; ++i) {
      const A v = load(x[i]), w = load(gamma[i]);
      dot += before_silu(load(grad[i]), v * factor * w, kSilu) * w * (v * inverse);
    }
    // A vector shorter than the bound is divided by a constant.
    if (tiny) dot = 0;
    ATELIER_SIMD
    for (Index i = 0; i < width; ++i) {
      const A v = load(x[i]), w = load(gamma[i]);
      const A g = before_silu(load(grad[i]), v * factor * w, kSilu) * w;
      store(grad_x[i], factor * (g - v * inverse * dot));
    }
    if (sums != nullptr) {
      ATELIER_SIMD
      for (Index i = 0; i < width; ++i) {
        const A v = load(x[i]);
        sums[i] += before_silu(load(grad[i]), v * factor * load(gamma[i]), kSilu) * (v * factor);
      }
    }
  }
}

template <typename T>
void channel_norm_backward(const void* grad, const void* x, const void* gamma, bool silu,
                           void* grad_x, void* sums, Index n, Index width) {
  auto rows = silu ? channel_norm_backward_rows<T, true> : channel_norm_backward_rows<T, false>;
  rows(static_cast<const T*>(grad), static_cast<const T*>(x), static_cast<const T*>(gamma),
       static_cast<T*>(grad_x), static_cast<Accum<T>*>(sums), n, width);
}

template <typename T>
constexpr ChannelNormLoops kChannelNorm = {.forward = channel_norm<T>,
                                           .backward = channel_norm_backward<T>};

}  // namespace

constinit const ChannelNormLoops ChannelNormLoops::ATELIER_INSTRUCTION_SET[] = {
    kChannelNorm<float>, kChannelNorm<double>, kChannelNorm<BFloat16>, kChannelNorm<Half>};

#else  // tensors become pointers

namespace {

using at::Tensor;

void channel_norm_forward(const Tensor& x, const Tensor& gamma, bool silu, Tensor& out) {
  const int64_t width = x.size(-1);
  const auto& loops = loops_for<ChannelNormLoops>(x);
  for_each_chunk(chunks_of(one_sample(row_count(x)), width), [&](const Chunk& c, int64_t) {
    loops.forward(at_element(x, c.first * width), gamma.const_data_ptr(), silu,
                  at_element(out, c.first * width), c.count, width);
  });
}

void channel_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& gamma, bool silu,
                           Tensor& grad_x, Tensor& grad_gamma) {
  const int64_t width = x.size(-1);
  const auto& loops = loops_for<ChannelNormLoops>(x);
  const auto chunks = chunks_of(one_sample(row_count(x)), width);
  SampleSums sums(grad_gamma.defined(), x, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.backward(at_element(grad, first), at_element(x, first), gamma.const_data_ptr(), silu,
                   at_element(grad_x, first), sums.of_chunk(i), c.count, width);
  });
  put_gradient(sums.total(chunks, 1, 0, width), grad_gamma);
}

const DeviceKernels channel_norm(at::kCPU, channel_norm_kernels,
                                 {.forward = channel_norm_forward,
                                  .backward = channel_norm_backward,
                                  .limits = kNoLimits});

}  // namespace

#endif

}  // namespace atelier::ops::cpu
