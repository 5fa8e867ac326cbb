// The product of silu(x) and y.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

// silu(x) * y
template <typename T>
struct Swiglu : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = kPackElements<T>;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    typename Base::Packs gates, ups;
    Base::load(a.x, place, gates);
    Base::load(a.y, place, ups);
    Base::for_packs([&](int p) {
      float gate[kElements], up[kElements];
      widen<T>(gates[p], gate);
      widen<T>(ups[p], up);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) up[i] *= gate[i] * sigmoid(gate[i]);
      store_row<T>(a.out, place, p, narrow<T>(up));
    });
  }
};

// The gradients of x, and of y in `second`.
template <typename T>
struct SwigluBackward : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = kPackElements<T>;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    typename Base::Packs gates, ups, grads;
    Base::load(a.x, place, gates);
    Base::load(a.y, place, ups);
    Base::load(a.grad, place, grads);
    Base::for_packs([&](int p) {
      float gate[kElements], up[kElements], grad[kElements];
      widen<T>(gates[p], gate);
      widen<T>(ups[p], up);
      widen<T>(grads[p], grad);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const float s = sigmoid(gate[i]), of_up = grad[i] * gate[i] * s;
        gate[i] = grad[i] * up[i] * silu_slope(gate[i], s);
        up[i] = of_up;
      }
      store_row<T>(a.out, place, p, narrow<T>(gate));
      store_row<T>(a.second, place, p, narrow<T>(up));
    });
  }
};

extern const RowKernel swiglu_rows = kernel_of<Swiglu>();
extern const RowKernel swiglu_backward_rows = kernel_of<SwigluBackward>();

}  // namespace atelier::ops::cuda
