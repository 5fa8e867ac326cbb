// The residual of a gated value.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

// x + by_sample * y
template <typename T>
struct GateResidual : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = kPackElements<T>;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    typename Base::Packs xs, ys;
    Base::load(a.x, place, xs);
    Base::load(a.y, place, ys);
    Base::for_packs([&](int p) {
      float x[kElements], y[kElements], gate[kElements];
      load_sample<T>(a.by_sample, place, p, gate);
      widen<T>(xs[p], x);
      widen<T>(ys[p], y);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) x[i] += gate[i] * y[i];
      store_row<T>(a.out, place, p, narrow<T>(x));
    });
  }
};

// The gradient of y. Column sums: of the gate, from y, which is not read where they are not wanted.
template <typename T>
struct GateResidualBackward : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = kPackElements<T>, kColumnSums = 1;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&,
                                 ColumnSums& column_sums, float (&)[kMostSums]) {
    const bool is_summed = a.partial_sums != nullptr && place.is_active;
    typename Base::Packs grads, ys = {};
    Base::load(a.grad, place, grads);
    if (is_summed) Base::load(a.y, place, ys);
    Base::for_packs([&](int p) {
      float grad[kElements], y[kElements], gate[kElements];
      load_sample<T>(a.by_sample, place, p, gate);
      widen<T>(grads[p], grad);
      widen<T>(ys[p], y);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        if (is_summed) column_sums.at[0][p][i] += grad[i] * y[i];
        grad[i] *= gate[i];
      }
      store_row<T>(a.out, place, p, narrow<T>(grad));
    });
  }
};

extern const RowKernel gate_residual_rows = kernel_of<GateResidual>();
extern const RowKernel gate_residual_backward_rows = kernel_of<GateResidualBackward>();

}  // namespace atelier::ops::cuda
