// Norms of heads and their rotation.
#include "ops/cpu/loops.h"
#ifndef ATELIER_INSTRUCTION_SET
#include "ops/cpu/rows.h"
#include "ops/norm_rope.h"
#endif

namespace atelier::ops::cpu {

struct NormRopeLoops {
  // `heads` rows of `width` in each of n; cos and sin: accumulation type, [n, width / 2]. Strides
  // in elements.
  void (*forward)(const void* x, int64_t row_stride, int64_t head_stride, const void* weight,
                  const void* cos, const void* sin, bool halves, void* out, int64_t n,
                  int64_t heads, int64_t width, double eps);
  // x and weight may be null, both.
  void (*backward)(const void* grad, const void* x, int64_t row_stride, int64_t head_stride,
                   const void* weight, const void* cos, const void* sin, bool halves, void* grad_x,
                   void* sums, int64_t n, int64_t heads, int64_t width, double eps);

  static const NormRopeLoops baseline[], avx2[], avx512[];
};

#ifdef ATELIER_INSTRUCTION_SET  // the loops

namespace {

// The two channels of pair i.
struct Pair {
  Index a, b;
};
template <bool kHalves>
inline Pair pair_of(Index i, Index half) {
  return kHalves ? Pair{i, i + half} : Pair{2 * i, 2 * i + 1};
}

template <typename T, bool kHalves>
void norm_rope_rows(const T* x, Index row_stride, Index head_stride, const T* weight,
                    const Accum<T>* cos, const Accum<T>* sin, T* out, Index n, Index heads,
                    Index width, double eps) {
  using A = Accum<T>;
  const Index half = width / 2;
  for (Index r = 0; r < n; ++r, x += row_stride, cos += half, sin += half) {
    for (Index h = 0; h < heads; ++h, out += width) {
      const T* v = x + h * head_stride;
      if (weight != nullptr) {
        const A inverse = inverse_rms(v, width, eps);
        ATELIER_SIMD
        for (Index i = 0; i < half; ++i) {
          const Pair p = pair_of<kHalves>(i, half);
          const A a = load(v[p.a]) * inverse * load(weight[p.a]);
          const A b = load(v[p.b]) * inverse * load(weight[p.b]);
          store(out[p.a], a * cos[i] - b * sin[i]);
          store(out[p.b], a * sin[i] + b * cos[i]);
        }
      } else {
        ATELIER_SIMD
        for (Index i = 0; i < half; ++i) {
          const Pair p = pair_of<kHalves>(i, half);
          const A a = load(v[p.a]), b = load(v[p.b]);
          store(out[p.a], a * cos[i] - b * sin[i]);
          store(out[p.b], a * sin[i] + b * cos[i]);
        }
      }
    }
  }
}

template <typename T>
void norm_rope(const void* x, Index row_stride, Index head_stride, const void* weight,
               const void* cos, const void* sin, bool halves, void* out, Index n, Index heads,
               Index width, double eps) {
  using A = Accum<T>;
  auto rows = halves ? norm_rope_rows<T, true> : norm_rope_rows<T, false>;
  rows(static_cast<const T*>(x), row_stride, head_stride, static_cast<const T*>(weight),
       static_cast<const A*>(cos), static_cast<const A*>(sin), static_cast<T*>(out), n, heads,
       width, eps);
}

template <typename T, bool kHalves>
void norm_rope_backward_rows(const T* grad, const T* x, Index row_stride, Index head_stride,
                             const T* weight, const Accum<T>* cos, const Accum<T>* sin, T* grad_x,
                             Accum<T>* sums, Index n, Index heads, Index width, double eps) {
  using A = Accum<T>;
  const Index half = width / 2;
  for (Index r = 0; r < n; ++r, cos += half, sin += half) {
    for (Index h = 0; h < heads; ++h, grad += width, grad_x += width) {
      if (weight == nullptr) {
        ATELIER_SIMD
        for (Index i = 0; i < half; ++i) {
          const Pair p = pair_of<kHalves>(i, half);
          const A a = load(grad[p.a]), b = load(grad[p.b]);
          store(grad_x[p.a], a * cos[i] + b * sin[i]);
          store(grad_x[p.b], b * cos[i] - a * sin[i]);
        }
        continue;
      }
      const T* v = x + r * row_stride + h * head_stride;
      const A inverse = inverse_rms(v, width, eps);
      A dot = 0;
      ATELIER_SIMD_SUM(dot)
      for (Index i = 0; i < half; ++i) {
        const Pair p = pair_of<kHalves>(i, half);
        const A a = load(grad[p.a]), b = load(grad[p.b]);
        dot += (a * cos[i] + b * sin[i]) * load(weight[p.a]) * (load(v[p.a]) * inverse) +
               (b * cos[i] - a * sin[i]) * load(weight[p.b]) * (load(v[p.b]) * inverse);
      }
      dot /= A(width);
      ATELIER_SIMD
      for (Index i = 0; i < half; ++i) {
        const Pair p = pair_of<kHalves>(i, half);
        const A a = load(grad[p.a]), b = load(grad[p.b]);
        const A of_a = (a * cos[i] + b * sin[i]) * load(weight[p.a]);
        const A of_b = (b * cos[i] - a * sin[i]) * load(weight[p.b]);
        store(grad_x[p.a], inverse * (of_a - load(v[p.a]) * inverse * dot));
        store(grad_x[p.b], inverse * (of_b - load(v[p.b]) * inverse * dot));
      }
      if (sums != nullptr) {
        ATELIER_SIMD
        for (Index i = 0; i < half; ++i) {
          const Pair p = pair_of<kHalves>(i, half);
          const A a = load(grad[p.a]), b = load(grad[p.b]);
          sums[p.a] += (a * cos[i] + b * sin[i]) * (load(v[p.a]) * inverse);
          sums[p.b] += (b * cos[i] - a * sin[i]) * (load(v[p.b]) * inverse);
        }
      }
    }
  }
}

template <typename T>
void norm_rope_backward(const void* grad, const void* x, Index row_stride, Index head_stride,
                        const void* weight, const void* cos, const void* sin, bool halves,
                        void* grad_x, void* sums, Index n, Index heads, Index width, double eps) {
  using A = Accum<T>;
  auto rows = halves ? norm_rope_backward_rows<T, true> : norm_rope_backward_rows<T, false>;
  rows(static_cast<const T*>(grad), static_cast<const T*>(x), row_stride, head_stride,
       static_cast<const T*>(weight), static_cast<const A*>(cos), static_cast<const A*>(sin),
       static_cast<T*>(grad_x), static_cast<A*>(sums), n, heads, width, eps);
}

template <typename T>
constexpr NormRopeLoops kNormRope = {.forward = norm_rope<T>, .backward = norm_rope_backward<T>};

}  // namespace

constinit const NormRopeLoops NormRopeLoops::ATELIER_INSTRUCTION_SET[] = {
    kNormRope<float>, kNormRope<double>, kNormRope<BFloat16>, kNormRope<Half>};

#else  // tensors become pointers

namespace {

using at::Tensor;

// The rows of a chunk, sample by sample: run(first, count, where the first stands in the join).
template <typename F>
void for_each_sample(const Chunk& c, const StreamRows& stream, const F& run) {
  for (int64_t s = 0; s < stream.rows.count(); ++s) {
    const int64_t first = std::max(c.first, stream.rows.offset(s));
    const int64_t end = std::min(c.first + c.count, stream.rows.offset(s + 1));
    if (first < end) run(first, end - first, first + stream.before(s));
  }
}

void norm_rope_forward(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
                       RopeLayout layout, double eps, const StreamRows& stream, Tensor& out) {
  const int64_t heads = x.size(1), width = x.size(2), half = width / 2;
  const auto& loops = loops_for<NormRopeLoops>(x);
  for_each_chunk(chunks_of(one_sample(x.size(0)), heads * width), [&](const Chunk& c, int64_t) {
    for_each_sample(c, stream, [&](int64_t first, int64_t count, int64_t joined) {
      loops.forward(at_element(x, first * x.stride(0)), x.stride(0), x.stride(1),
                    at_element_or_null(weight, 0), at_element(cos, first * half),
                    at_element(sin, first * half), layout == RopeLayout::kHalves,
                    at_element(out, joined * heads * width), count, heads, width, eps);
    });
  });
}

void norm_rope_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                        const Tensor& cos, const Tensor& sin, RopeLayout layout, double eps,
                        const StreamRows& stream, Tensor& grad_x, Tensor& grad_weight) {
  const int64_t heads = grad.size(1), width = grad.size(2), half = width / 2;
  const int64_t row_stride = x.defined() ? x.stride(0) : 0;
  const int64_t head_stride = x.defined() ? x.stride(1) : 0;
  const auto& loops = loops_for<NormRopeLoops>(grad);
  const auto chunks = chunks_of(one_sample(grad_x.size(0)), heads * width);
  SampleSums sums(grad_weight.defined(), grad, chunks, width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    for_each_sample(c, stream, [&](int64_t first, int64_t count, int64_t joined) {
      loops.backward(
          at_element(grad, joined * heads * width), at_element_or_null(x, first * row_stride),
          row_stride, head_stride, at_element_or_null(weight, 0), at_element(cos, first * half),
          at_element(sin, first * half), layout == RopeLayout::kHalves,
          at_element(grad_x, first * heads * width), sums.of_chunk(i), count, heads, width, eps);
    });
  });
  put_gradient(sums.total(chunks, 1, 0, width), grad_weight);
}

const DeviceKernels norm_rope(at::kCPU, norm_rope_kernels,
                              {.forward = norm_rope_forward,
                               .backward = norm_rope_backward,
                               .limits = kNoLimits});

}  // namespace

#endif

}  // namespace atelier::ops::cpu
