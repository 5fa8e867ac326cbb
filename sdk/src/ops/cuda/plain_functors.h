// Operators of which each value needs no more than its own place in other rows: no sums over a row.
#pragma once

#include "ops/cuda/norm_functors.h"

namespace atelier::ops::cuda {

struct NoColumns {};
struct NoLane {};

// One pack, and nothing to add up.
template <typename T>
struct PlainFunctor : RowFunctor<T, 1> {
  static constexpr int kReductions = 0, kSums = 0, kColumnSums = 0;
  using Columns = NoColumns;
  using Lane = NoLane;
  static ATELIER_LANE void prepare(const RowArguments&, const Place&, NoColumns&) {}
};

template <typename T>
struct GateColumns {
  float gate[kPackElements<T>];
};

// x + by_sample * y
template <typename T>
struct GateResidual : PlainFunctor<T> {
  static constexpr int kElements = kPackElements<T>;
  using Columns = GateColumns<T>;

  static ATELIER_LANE void prepare(const RowArguments& a, const Place& place, Columns& columns) {
    load_sample<T>(a.by_sample, place, 0, columns.gate);
  }

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const Columns& columns,
                                 NoLane&, ColumnSums&, float (&)[kMostSums]) {
    float x[kElements], y[kElements];
    widen<T>(load_row<T>(a.x, place, 0), x);
    widen<T>(load_row<T>(a.y, place, 0), y);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) x[i] += columns.gate[i] * y[i];
    store_row<T>(a.out, place, 0, narrow<T>(x));
  }
};

// The gradient of y. Column sums: of the gate, from y, which is not read where they are not wanted.
template <typename T>
struct GateResidualBackward : PlainFunctor<T> {
  static constexpr int kElements = kPackElements<T>, kColumnSums = 1;
  using Columns = GateColumns<T>;

  static ATELIER_LANE void prepare(const RowArguments& a, const Place& place, Columns& columns) {
    load_sample<T>(a.by_sample, place, 0, columns.gate);
  }

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const Columns& columns,
                                 NoLane&, ColumnSums& column_sums, float (&)[kMostSums]) {
    float grad[kElements], y[kElements];
    widen<T>(load_row<T>(a.grad, place, 0), grad);
    if (a.partial_sums != nullptr && place.is_active) {
      widen<T>(load_row<T>(a.y, place, 0), y);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) column_sums.at[0][0][i] += grad[i] * y[i];
    }
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) grad[i] *= columns.gate[i];
    store_row<T>(a.out, place, 0, narrow<T>(grad));
  }
};

// silu(x) * y
template <typename T>
struct Swiglu : PlainFunctor<T> {
  static constexpr int kElements = kPackElements<T>;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const NoColumns&,
                                 NoLane&, ColumnSums&, float (&)[kMostSums]) {
    float gate[kElements], up[kElements];
    widen<T>(load_row<T>(a.x, place, 0), gate);
    widen<T>(load_row<T>(a.y, place, 0), up);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) up[i] *= gate[i] * sigmoid(gate[i]);
    store_row<T>(a.out, place, 0, narrow<T>(up));
  }
};

// The gradients of x, and of y in `second`.
template <typename T>
struct SwigluBackward : PlainFunctor<T> {
  static constexpr int kElements = kPackElements<T>;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const NoColumns&,
                                 NoLane&, ColumnSums&, float (&)[kMostSums]) {
    float gate[kElements], up[kElements], grad[kElements];
    widen<T>(load_row<T>(a.x, place, 0), gate);
    widen<T>(load_row<T>(a.y, place, 0), up);
    widen<T>(load_row<T>(a.grad, place, 0), grad);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float s = sigmoid(gate[i]), of_up = grad[i] * gate[i] * s;
      gate[i] = grad[i] * up[i] * silu_slope(gate[i], s);
      up[i] = of_up;
    }
    store_row<T>(a.out, place, 0, narrow<T>(gate));
    store_row<T>(a.second, place, 0, narrow<T>(up));
  }
};

template <typename T>
struct GeluTanh : PlainFunctor<T> {
  static constexpr int kElements = kPackElements<T>;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const NoColumns&,
                                 NoLane&, ColumnSums&, float (&)[kMostSums]) {
    float v[kElements];
    widen<T>(load_row<T>(a.x, place, 0), v);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) v[i] *= sigmoid(gelu_argument(v[i]));
    store_row<T>(a.out, place, 0, narrow<T>(v));
  }
};

template <typename T>
struct GeluTanhBackward : PlainFunctor<T> {
  static constexpr int kElements = kPackElements<T>;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const NoColumns&,
                                 NoLane&, ColumnSums&, float (&)[kMostSums]) {
    float v[kElements], grad[kElements];
    widen<T>(load_row<T>(a.x, place, 0), v);
    widen<T>(load_row<T>(a.grad, place, 0), grad);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float s = sigmoid(gelu_argument(v[i]));
      const float slope = 1.5957691216057308f * (1.0f + 3 * 0.044715f * v[i] * v[i]);
      grad[i] *= s + v[i] * s * (1.0f - s) * slope;
    }
    store_row<T>(a.out, place, 0, narrow<T>(grad));
  }
};

}  // namespace atelier::ops::cuda
