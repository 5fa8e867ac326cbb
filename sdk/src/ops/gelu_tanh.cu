// GELU with the tanh approximation.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

template <typename T>
struct GeluTanh : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = kPackElements<T>;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    typename Base::Packs xs;
    Base::load(a.x, place, xs);
    Base::for_packs([&](int p) {
      float v[kElements];
      widen<T>(xs[p], v);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) v[i] *= sigmoid(gelu_argument(v[i]));
      store_row<T>(a.out, place, p, narrow<T>(v));
    });
  }
};

template <typename T>
struct GeluTanhBackward : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = kPackElements<T>;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    typename Base::Packs xs, grads;
    Base::load(a.x, place, xs);
    Base::load(a.grad, place, grads);
    Base::for_packs([&](int p) {
      float v[kElements], grad[kElements];
      widen<T>(xs[p], v);
      widen<T>(grads[p], grad);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const float s = sigmoid(gelu_argument(v[i]));
        const float slope = 1.5957691216057308f * (1.0f + 3 * 0.044715f * v[i] * v[i]);
        grad[i] *= s + v[i] * s * (1.0f - s) * slope;
      }
      store_row<T>(a.out, place, p, narrow<T>(grad));
    });
  }
};

// GELU of x, and codes of that.
template <typename T>
struct GeluTanhCodes : RowFunctor<T, 4> {
  using Base = RowFunctor<T, 4>;
  static constexpr int kPacks = Base::kLanePacks, kMostRegisters = 80;
  static constexpr int kElements = Base::kElements, kReductions = 1, kSums = 1, kColumnSums = 0;
  static constexpr int kMaximumBehind = 0;
  struct Lane {
    Pack x[kPacks];  // becomes the result
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, Lane& lane, ColumnSums&,
                                 float (&sums)[kMostSums]) {
    if constexpr (kPhase == 0) Base::load(a.x, place, lane.x);
    const float scale = kPhase == 0 ? 1.0f : scale_of(sums[0], a.is_int8);
    if constexpr (kPhase == 0) sums[0] = 0;
    Base::for_packs([&](int p) {
      float v[kElements];
      widen<T>(lane.x[p], v);
      if constexpr (kPhase == 0) {
        ATELIER_UNROLL
        for (int i = 0; i < kElements; ++i) v[i] *= sigmoid(gelu_argument(v[i]));
        lane.x[p] = narrow<T>(v);
        store_row<T>(a.out, place, p, lane.x[p]);
        widen<T>(lane.x[p], v);
        sums[0] = largest_of<T>(v, sums[0], place.count<T>(p));
      } else {
        store_codes<T>(a, place, p, v, scale);
      }
    });
    if constexpr (kPhase == 1) store_scale(a, place, scale);
  }
};

extern const RowKernel gelu_tanh_rows = kernel_of<GeluTanh>();
extern const RowKernel gelu_tanh_backward_rows = kernel_of<GeluTanhBackward>();
extern const RowKernel gelu_tanh_codes_rows = kernel_of<GeluTanhCodes>();

}  // namespace atelier::ops::cuda
