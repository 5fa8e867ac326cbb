// Operators of which each value needs no more than its own place in other rows: no sums over a row.
#pragma once

#include "ops/cuda/norm_functors.h"

namespace atelier::ops::cuda {

struct NoLane {};

// Two packs of a lane, and nothing to add up.
template <typename T>
struct PlainFunctor : RowFunctor<T, 2> {
  using Base = RowFunctor<T, 2>;
  using Packs = Pack[2];
  static constexpr int kMostRegisters = 64;
  static constexpr int kReductions = 0, kSums = 0, kColumnSums = 0;
  using Lane = NoLane;
};

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

}  // namespace atelier::ops::cuda
