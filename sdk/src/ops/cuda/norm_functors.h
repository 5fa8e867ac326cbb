// Norms, and what is done beside them in the same pass over memory.
//
// A functor is what one lane does with a row, in phases: between phase i and i + 1 the kernel adds
// `sums` up over the lanes of the row, each of `kReductions` times the first kSums of them. A lane
// loads its inputs in phase 0, keeps them as they were read, and writes in the last phase; where
// registers are few it loads in the last phase what is used there alone.
// `Columns` is what holds for all rows of a sample; `kColumnSums` sums over rows are left in
// `ColumnSums` where they are wanted.
#pragma once

#include "ops/cuda/row_grid.h"
#include "ops/cuda/row_math.h"

namespace atelier::ops::cuda {

inline constexpr int kMostSums = 2;  // between two phases

// Where a functor adds up over rows, by lane.
template <typename F>
struct ColumnSums {
  float at[F::kColumnSums > 0 ? F::kColumnSums : 1][F::kLanePacks][F::kElements];
};

// Behind the last row of a chunk.
template <typename F>
ATELIER_LANE void store_column_sums(const RowArguments& arguments, const RowGrid& grid,
                                    const Chunk& chunk, int thread, const ColumnSums<F>& sums) {
  Place place = chunk.place;
  place.is_active = true;
  const int64_t part = chunk.index * grid.rows_at_once + thread / grid.lanes;
  ATELIER_UNROLL
  for (int k = 0; k < F::kColumnSums; ++k) {
    ATELIER_UNROLL
    for (int p = 0; p < F::kLanePacks; ++p)
      store_sums<typename F::Row>(arguments.partial_sums + (part * F::kColumnSums + k) * grid.width,
                                  place, p, sums.at[k][p]);
  }
}

template <typename T, int kPacks>
struct RowFunctor {
  static constexpr int kElements = kPackElements<T>;
  static constexpr int kLanePacks = kPacks;
  using Row = T;
  using Values = float[kElements];

  template <typename F>
  static ATELIER_LANE void for_packs(F&& run) {
    ATELIER_UNROLL
    for (int p = 0; p < kPacks; ++p) run(p);
  }

  static ATELIER_LANE void load(const Input& from, const Place& place, Pack (&to)[kPacks]) {
    for_packs([&](int p) { to[p] = load_row<T>(from, place, p); });
  }
};

// What a normal value is multiplied with: the weight, times 1 + by_sample or the tanh of it.
template <typename T, int kPacks>
ATELIER_LANE void load_factor(const Input& weight, const Input& by_sample, bool is_gate,
                              const Place& place, int p, float (&factor)[kPackElements<T>]) {
  constexpr int kElements = kPackElements<T>;
  load_sample<T>(weight, place, p, factor);
  if (by_sample.data == nullptr) return;
  float by[kElements];
  load_sample<T>(by_sample, place, p, by);
  ATELIER_UNROLL
  for (int i = 0; i < kElements; ++i) factor[i] *= is_gate ? tanhf(by[i]) : 1.0f + by[i];
}

// (x - mean) / deviation * factor + shift. With kGated, x is made first: x + by_sample * y, which
// is written to `second`.
template <typename T, int kPacks, bool kGated>
struct NormModulate : RowFunctor<T, kPacks> {
  using Base = RowFunctor<T, kPacks>;
  static constexpr int kElements = Base::kElements, kReductions = 2, kSums = 1, kColumnSums = 0;
  struct Columns {
    float factor[kPacks][kElements], gate[kGated ? kPacks : 1][kElements];
    float shift[kElements];  // of the only pack; several are read again for each row
  };
  struct Lane {
    Pack x[kPacks];
    float mean;
  };

  static ATELIER_LANE void prepare(const RowArguments& a, const Place& place, Columns& columns) {
    Base::for_packs([&](int p) {
      load_sample<T>(a.weight, place, p, columns.factor[p]);
      if constexpr (kPacks == 1) load_sample<T>(a.shift, place, p, columns.shift);
      if constexpr (kGated) load_sample<T>(a.by_sample, place, p, columns.gate[p]);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) columns.factor[p][i] += a.one_plus ? 1.0f : 0.0f;
    });
  }

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const Columns& columns,
                                 Lane& lane, ColumnSums&, float (&sums)[kMostSums]) {
    if constexpr (kPhase == 0) begin(a, place, columns, lane, sums);
    if constexpr (kPhase == 1) {
      lane.mean = sums[0] / float(place.width);
      sums[0] = squares(place, lane);
    }
    if constexpr (kPhase == 2) {
      const float inverse = 1.0f / sqrtf(sums[0] / float(place.width) + a.eps);
      Base::for_packs([&](int p) { end(a, place, columns, lane, p, inverse); });
    }
  }

 private:
  static ATELIER_LANE float squares(const Place& place, const Lane& lane) {
    float sum = 0;
    Base::for_packs([&](int p) {
      const int count = place.count<T>(p);
      float v[kElements];
      widen<T>(lane.x[p], v);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i)
        sum += i < count ? (v[i] - lane.mean) * (v[i] - lane.mean) : 0.0f;
    });
    return sum;
  }

  static ATELIER_LANE void end(const RowArguments& a, const Place& place, const Columns& columns,
                               const Lane& lane, int p, float inverse) {
    float v[kElements], shift[kElements];
    widen<T>(lane.x[p], v);
    if constexpr (kPacks > 1) load_sample<T>(a.shift, place, p, shift);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float normal = (v[i] - lane.mean) * inverse;
      v[i] = normal * columns.factor[p][i] + (kPacks > 1 ? shift[i] : columns.shift[i]);
    }
    store_row<T>(a.out, place, p, narrow<T>(v));
  }

  static ATELIER_LANE void begin(const RowArguments& a, const Place& place, const Columns& columns,
                                 Lane& lane, float (&sums)[kMostSums]) {
    Base::load(a.x, place, lane.x);
    [[maybe_unused]] Pack y[kPacks];
    if constexpr (kGated) Base::load(a.y, place, y);
    sums[0] = 0;
    Base::for_packs([&](int p) {
      float v[kElements];
      widen<T>(lane.x[p], v);
      if constexpr (kGated) {
        float of_y[kElements];
        widen<T>(y[p], of_y);
        ATELIER_UNROLL
        for (int i = 0; i < kElements; ++i) v[i] += columns.gate[p][i] * of_y[i];
        lane.x[p] = narrow<T>(v);
        store_row<T>(a.second, place, p, lane.x[p]);
        widen<T>(lane.x[p], v);
      }
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) sums[0] += v[i];
    });
  }
};

template <typename T, int kPacks>
using NormModulateAlone = NormModulate<T, kPacks, false>;
template <typename T, int kPacks>
using NormModulateGated = NormModulate<T, kPacks, true>;

// The gradient of x, to which `added` is added. Column sums: of shift and of the factor.
template <typename T, int kPacks>
struct NormModulateBackward : RowFunctor<T, kPacks> {
  using Base = RowFunctor<T, kPacks>;
  static constexpr int kElements = Base::kElements, kReductions = 3, kSums = 2, kColumnSums = 2;
  // Factors are read again for each row, and what is added where it is used: registers are few.
  struct Columns {};
  struct Lane {
    Pack x[kPacks], grad[kPacks];
    float mean, inverse;
  };

  static ATELIER_LANE void prepare(const RowArguments&, const Place&, Columns&) {}

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const Columns&,
                                 Lane& lane, ColumnSums& column_sums, float (&sums)[kMostSums]) {
    const float width = float(place.width), first = sums[0] / width, second = sums[1] / width;
    if constexpr (kPhase == 0) load_all(a, place, lane);
    if constexpr (kPhase == 1) lane.mean = first;
    if constexpr (kPhase == 2) lane.inverse = 1.0f / sqrtf(first + a.eps);
    sums[0] = sums[1] = 0;
    Base::for_packs([&](int p) {
      const int count = place.count<T>(p);
      float x[kElements], grad[kElements], factor[kElements];
      widen<T>(lane.x[p], x);
      if constexpr (kPhase >= 2) {
        widen<T>(lane.grad[p], grad);
        load_factor(a, place, p, factor);
      }
      if constexpr (kPhase == 3) {
        end(a, place, factor, lane, column_sums, p, x, grad, first, second);
      } else {
        ATELIER_UNROLL
        for (int i = 0; i < kElements; ++i) {
          if constexpr (kPhase == 0) sums[0] += x[i];
          if constexpr (kPhase == 1) sums[0] += i < count ? square(x[i] - lane.mean) : 0.0f;
          if constexpr (kPhase == 2) {
            const float g = grad[i] * factor[i];
            sums[0] += g;
            sums[1] += g * ((x[i] - lane.mean) * lane.inverse);
          }
        }
      }
    });
  }

 private:
  static ATELIER_LANE float square(float v) { return v * v; }

  static ATELIER_LANE void load_factor(const RowArguments& a, const Place& place, int p,
                                       float (&factor)[kElements]) {
    load_sample<T>(a.weight, place, p, factor);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) factor[i] += a.one_plus ? 1.0f : 0.0f;
  }

  static ATELIER_LANE void load_all(const RowArguments& a, const Place& place, Lane& lane) {
    Base::load(a.x, place, lane.x);
    Base::load(a.grad, place, lane.grad);
  }

  static ATELIER_LANE Pack load_added(const RowArguments& a, const Place& place, int p) {
    return a.added.data != nullptr ? load_row<T>(a.added, place, p) : Pack{};
  }

  template <typename ColumnSums>
  static ATELIER_LANE void end(const RowArguments& a, const Place& place,
                               const float (&factor)[kElements], const Lane& lane,
                               ColumnSums& column_sums, int p, const float (&x)[kElements],
                               const float (&grad)[kElements], float mean_grad, float mean_dot) {
    float v[kElements];
    widen<T>(load_added(a, place, p), v);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float normal = (x[i] - lane.mean) * lane.inverse;
      v[i] += lane.inverse * (grad[i] * factor[i] - mean_grad - normal * mean_dot);
      if (a.partial_sums != nullptr && place.is_active) {
        column_sums.at[0][p][i] += grad[i];
        column_sums.at[1][p][i] += grad[i] * normal;
      }
    }
    store_row<T>(a.out, place, p, narrow<T>(v));
  }
};

// Of a row with this sum of squares: what its values are multiplied with. `is_constant`: it does
// not depend on them.
ATELIER_LANE float inverse_of(const RowArguments& a, float squares, float width,
                              bool& is_constant) {
  is_constant = false;
  if (!a.is_channel) return 1.0f / sqrtf(squares / width + a.eps);
  const float length = sqrtf(squares);
  is_constant = length < 1e-12f;
  return sqrtf(width) / (is_constant ? 1e-12f : length);
}

template <typename T, int kPacks>
ATELIER_LANE float squares_of(const Pack (&packs)[kPacks]) {
  float sum = 0;
  ATELIER_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    float v[kPackElements<T>];
    widen<T>(packs[p], v);
    ATELIER_UNROLL
    for (int i = 0; i < kPackElements<T>; ++i) sum += v[i] * v[i];
  }
  return sum;
}

template <typename T, int kPacks>
struct FactorColumns {
  float factor[kPacks][kPackElements<T>];
};

// x / rms(x) * factor, to which `added` is added. With is_channel the norm is that over channels,
// and silu may follow.
template <typename T, int kPacks>
struct RmsScale : RowFunctor<T, kPacks> {
  using Base = RowFunctor<T, kPacks>;
  static constexpr int kElements = Base::kElements, kReductions = 1, kSums = 1, kColumnSums = 0;
  using Columns = FactorColumns<T, kPacks>;
  struct Lane {
    Pack x[kPacks], added[kPacks];
  };

  static ATELIER_LANE void prepare(const RowArguments& a, const Place& place, Columns& columns) {
    Base::for_packs([&](int p) {
      load_factor<T, kPacks>(a.weight, a.by_sample, a.is_gate, place, p, columns.factor[p]);
    });
  }

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const Columns& columns,
                                 Lane& lane, ColumnSums&, float (&sums)[kMostSums]) {
    if constexpr (kPhase == 0) {
      Base::load(a.x, place, lane.x);
      if (a.added.data != nullptr)
        Base::load(a.added, place, lane.added);
      else
        Base::for_packs([&](int p) { lane.added[p] = {}; });
      sums[0] = squares_of<T>(lane.x);
    } else {
      bool is_constant;
      const float inverse = inverse_of(a, sums[0], float(place.width), is_constant);
      Base::for_packs([&](int p) { end(a, place, columns, lane, p, inverse); });
    }
  }

 private:
  static ATELIER_LANE void end(const RowArguments& a, const Place& place, const Columns& columns,
                               const Lane& lane, int p, float inverse) {
    float v[kElements], added[kElements];
    widen<T>(lane.x[p], v);
    widen<T>(lane.added[p], added);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) v[i] *= inverse;
    if (a.rounds_normal) widen<T>(narrow<T>(v), v);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      v[i] *= columns.factor[p][i];
      if (a.silu) v[i] *= sigmoid(v[i]);
      v[i] += added[i];
    }
    store_row<T>(a.out, place, p, narrow<T>(v));
  }
};

// The gradient of x. Column sums: of the factor.
template <typename T, int kPacks>
struct RmsScaleBackward : RowFunctor<T, kPacks> {
  using Base = RowFunctor<T, kPacks>;
  static constexpr int kElements = Base::kElements, kReductions = 2, kSums = 1, kColumnSums = 1;
  using Columns = FactorColumns<T, kPacks>;
  struct Lane {
    Pack x[kPacks], grad[kPacks];
    float inverse;
    bool is_constant;
  };

  static ATELIER_LANE void prepare(const RowArguments& a, const Place& place, Columns& columns) {
    RmsScale<T, kPacks>::prepare(a, place, columns);
  }

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const Columns& columns,
                                 Lane& lane, ColumnSums& column_sums, float (&sums)[kMostSums]) {
    const float width = float(place.width);
    if constexpr (kPhase == 0) {
      Base::load(a.x, place, lane.x);
      Base::load(a.grad, place, lane.grad);
      sums[0] = squares_of<T>(lane.x);
      return;
    }
    if constexpr (kPhase == 1) {
      lane.inverse = inverse_of(a, sums[0], width, lane.is_constant);
      sums[0] = 0;
    }
    const float mean_dot = kPhase == 1 || lane.is_constant ? 0.0f : sums[0] / width;
    Base::for_packs([&](int p) {
      float x[kElements], grad[kElements];
      widen<T>(lane.x[p], x);
      widen<T>(lane.grad[p], grad);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const float normal = x[i] * lane.inverse, factor = columns.factor[p][i];
        if (a.silu) grad[i] *= silu_slope(normal * factor, sigmoid(normal * factor));
        if constexpr (kPhase == 1) sums[0] += grad[i] * factor * normal;
        if constexpr (kPhase == 2) {
          x[i] = lane.inverse * (grad[i] * factor - normal * mean_dot);
          if (a.partial_sums != nullptr && place.is_active)
            column_sums.at[0][p][i] += grad[i] * normal;
        }
      }
      if constexpr (kPhase == 2) store_row<T>(a.out, place, p, narrow<T>(x));
    });
  }
};

// The two factors of a gated norm and of the norm behind it. Those of several packs are read again
// for each row: registers are few.
template <typename T, int kPacks>
struct TwoFactors {
  static constexpr int kElements = kPackElements<T>;
  float held_gate[kElements], held_factor[kElements];  // of the only pack

  static ATELIER_LANE void load_gate(const RowArguments& a, const Place& place, int p,
                                     float (&v)[kElements]) {
    load_factor<T, kPacks>(a.weight, a.by_sample, true, place, p, v);
  }
  static ATELIER_LANE void load_next(const RowArguments& a, const Place& place, int p,
                                     float (&v)[kElements]) {
    load_factor<T, kPacks>(a.next_weight, a.next_by_sample, false, place, p, v);
  }

  ATELIER_LANE void prepare(const RowArguments& a, const Place& place) {
    if constexpr (kPacks == 1) {
      load_gate(a, place, 0, held_gate);
      load_next(a, place, 0, held_factor);
    }
  }
  ATELIER_LANE void gate(const RowArguments& a, const Place& place, int p,
                         float (&v)[kElements]) const {
    if constexpr (kPacks > 1)
      load_gate(a, place, p, v);
    else
      copy(held_gate, v);
  }
  ATELIER_LANE void factor(const RowArguments& a, const Place& place, int p,
                           float (&v)[kElements]) const {
    if constexpr (kPacks > 1)
      load_next(a, place, p, v);
    else
      copy(held_factor, v);
  }

 private:
  static ATELIER_LANE void copy(const float (&from)[kElements], float (&to)[kElements]) {
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) to[i] = from[i];
  }
};

// sum = x + y / rms(y) * gate, which is written to `second`; then sum / rms(sum) * factor.
template <typename T, int kPacks>
struct RmsGateResidualNormModulate : RowFunctor<T, kPacks> {
  using Base = RowFunctor<T, kPacks>;
  static constexpr int kElements = Base::kElements, kReductions = 2, kSums = 1, kColumnSums = 0;
  using Columns = TwoFactors<T, kPacks>;
  struct Lane {
    Pack x[kPacks], y[kPacks];
  };

  static ATELIER_LANE void prepare(const RowArguments& a, const Place& place, Columns& columns) {
    columns.prepare(a, place);
  }

  // x becomes the sum.
  static ATELIER_LANE void add_up(const RowArguments& a, const Place& place, const Columns& columns,
                                  Pack (&x)[kPacks], const Pack (&y)[kPacks], float inverse) {
    Base::for_packs([&](int p) {
      float v[kElements], of_y[kElements], gate[kElements];
      columns.gate(a, place, p, gate);
      widen<T>(x[p], v);
      widen<T>(y[p], of_y);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) v[i] += of_y[i] * inverse * gate[i];
      x[p] = narrow<T>(v);
    });
  }

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const Columns& columns,
                                 Lane& lane, ColumnSums&, float (&sums)[kMostSums]) {
    if constexpr (kPhase == 0) {
      Base::load(a.x, place, lane.x);
      Base::load(a.y, place, lane.y);
      sums[0] = squares_of<T>(lane.y);
      return;
    }
    const float inverse = 1.0f / sqrtf(sums[0] / float(place.width) + a.eps);
    if constexpr (kPhase == 1) {
      add_up(a, place, columns, lane.x, lane.y, inverse);
      Base::for_packs([&](int p) { store_row<T>(a.second, place, p, lane.x[p]); });
      sums[0] = squares_of<T>(lane.x);
    } else {
      Base::for_packs([&](int p) {
        float v[kElements], factor[kElements];
        widen<T>(lane.x[p], v);
        columns.factor(a, place, p, factor);
        ATELIER_UNROLL
        for (int i = 0; i < kElements; ++i) v[i] *= inverse * factor[i];
        store_row<T>(a.out, place, p, narrow<T>(v));
      });
    }
  }
};

// The gradients of x, which is that of the sum, in `out`, and of y in `second`. `added` is added to
// the gradient of the sum. Column sums: of the gate and of the factor.
template <typename T, int kPacks>
struct RmsGateResidualNormModulateBackward : RowFunctor<T, kPacks> {
  using Base = RowFunctor<T, kPacks>;
  using Forward = RmsGateResidualNormModulate<T, kPacks>;
  static constexpr int kElements = Base::kElements, kReductions = 4, kSums = 1, kColumnSums = 2;
  using Columns = TwoFactors<T, kPacks>;
  struct Lane {
    Pack sum[kPacks], y[kPacks], grad[kPacks], added[kPacks];
    float inverse_y, inverse_sum;
  };

  static ATELIER_LANE void prepare(const RowArguments& a, const Place& place, Columns& columns) {
    Forward::prepare(a, place, columns);
  }

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, const Columns& columns,
                                 Lane& lane, ColumnSums& column_sums, float (&sums)[kMostSums]) {
    const float mean = sums[0] / float(place.width);
    if constexpr (kPhase == 0) {
      load_all(a, place, lane);
      sums[0] = squares_of<T>(lane.y);
    } else if constexpr (kPhase == 1) {
      lane.inverse_y = 1.0f / sqrtf(mean + a.eps);
      Forward::add_up(a, place, columns, lane.sum, lane.y, lane.inverse_y);
      sums[0] = squares_of<T>(lane.sum);
    } else if constexpr (kPhase == 2) {
      lane.inverse_sum = 1.0f / sqrtf(mean + a.eps);
      sums[0] = dot<1>(a, place, columns, lane.grad, lane.sum, lane.inverse_sum);
    } else if constexpr (kPhase == 3) {
      Base::for_packs([&](int p) {
        if constexpr (kPacks > 1) lane.added[p] = load_added(a, place, p);  // registers are few
        lane.added[p] = through<1>(a, place, columns, p, lane.grad[p], lane.sum[p],
                                   lane.inverse_sum, mean, column_sums, lane.added[p]);
        store_row<T>(a.out, place, p, lane.added[p]);
      });
      sums[0] = dot<0>(a, place, columns, lane.added, lane.y, lane.inverse_y);
    } else {
      Base::for_packs([&](int p) {
        store_row<T>(a.second, place, p,
                     through<0>(a, place, columns, p, lane.added[p], lane.y[p], lane.inverse_y,
                                mean, column_sums, {}));
      });
    }
  }

 private:
  static ATELIER_LANE void load_all(const RowArguments& a, const Place& place, Lane& lane) {
    Base::load(a.x, place, lane.sum);
    Base::load(a.y, place, lane.y);
    Base::load(a.grad, place, lane.grad);
    if constexpr (kPacks == 1) lane.added[0] = load_added(a, place, 0);
  }

  static ATELIER_LANE Pack load_added(const RowArguments& a, const Place& place, int p) {
    return a.added.data != nullptr ? load_row<T>(a.added, place, p) : Pack{};
  }

  // The norm of the sum is norm 1, that of y norm 0.
  template <int kNorm>
  static ATELIER_LANE void factor_of(const RowArguments& a, const Place& place,
                                     const Columns& columns, int p, float (&factor)[kElements]) {
    if constexpr (kNorm == 1)
      columns.factor(a, place, p, factor);
    else
      columns.gate(a, place, p, factor);
  }

  template <int kNorm>
  static ATELIER_LANE float dot(const RowArguments& a, const Place& place, const Columns& columns,
                                const Pack (&grads)[kPacks], const Pack (&values)[kPacks],
                                float inverse) {
    float sum = 0;
    Base::for_packs([&](int p) {
      float grad[kElements], v[kElements], factor[kElements];
      factor_of<kNorm>(a, place, columns, p, factor);
      widen<T>(grads[p], grad);
      widen<T>(values[p], v);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) sum += grad[i] * factor[i] * (v[i] * inverse);
    });
    return sum;
  }

  // `to` and the gradient of `value`, which is rounded once.
  template <int kNorm, typename ColumnSums>
  static ATELIER_LANE Pack through(const RowArguments& a, const Place& place,
                                   const Columns& columns, int p, const Pack& of_result,
                                   const Pack& value, float inverse, float mean_dot,
                                   ColumnSums& column_sums, const Pack& to) {
    float grad[kElements], v[kElements], result[kElements], factor[kElements];
    factor_of<kNorm>(a, place, columns, p, factor);
    widen<T>(of_result, grad);
    widen<T>(value, v);
    widen<T>(to, result);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float normal = v[i] * inverse;
      result[i] += inverse * (grad[i] * factor[i] - normal * mean_dot);
      if (a.partial_sums != nullptr && place.is_active)
        column_sums.at[kNorm][p][i] += grad[i] * normal;
    }
    return narrow<T>(result);
  }
};

}  // namespace atelier::ops::cuda
