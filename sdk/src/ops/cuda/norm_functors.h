// Norms, and what is done beside them in the same pass over memory.
//
// A functor is what one lane does with a row, in phases: between phase i and i + 1 the kernel adds
// `sums` up over the lanes of the row, each of `kReductions` times the first kSums of them. A lane
// loads its inputs in phase 0, keeps them as they were read, and writes in the last phase. How many
// packs a lane has, and kMostRegisters, are such that a multiprocessor of a Hopper GPU has 32 KB of
// inputs under way, which is what hides its memory's latency.
// Factors and shifts of a sample are read again for each row, out of caches, as registers are few.
// `kColumnSums` sums over rows are left in `ColumnSums` where they are wanted.
#pragma once

#include "ops/cuda/row_codes.h"
#include "ops/cuda/row_math.h"

namespace atelier::ops::cuda {

inline constexpr int kMostSums = 2;  // between two phases

// What lanes make of two of their values.
template <bool kIsMaximum>
ATELIER_LANE float joined(float a, float b) {
  return kIsMaximum ? larger(a, b) : a + b;
}

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

template <typename T, int kOfLane>
struct RowFunctor {
  static constexpr int kElements = kPackElements<T>;
  static constexpr int kLanePacks = kOfLane;
  // The phase behind which the largest of `sums` is told instead of their sum.
  static constexpr int kMaximumBehind = -1;
  // No more are left to each lane of kMostLanes.
  static constexpr int kMostRegisters = 128;
  using Row = T;
  using Values = float[kElements];

  template <typename F>
  static ATELIER_LANE void for_packs(F&& run) {
    ATELIER_UNROLL
    for (int p = 0; p < kOfLane; ++p) run(p);
  }

  static ATELIER_LANE void load(const Input& from, const Place& place, Pack (&to)[kOfLane]) {
    for_packs([&](int p) { to[p] = load_row<T>(from, place, p); });
  }
};

// A factor, which may be given as one less.
template <typename T>
ATELIER_LANE void load_plus(const Input& from, bool one_plus, const Place& place, int p,
                            float (&factor)[kPackElements<T>]) {
  load_sample<T>(from, place, p, factor);
  ATELIER_UNROLL
  for (int i = 0; i < kPackElements<T>; ++i) factor[i] += one_plus ? 1.0f : 0.0f;
}

// What a normal value is multiplied with: the weight, times 1 + by_sample or the tanh of it.
template <typename T>
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
// is written to `second`. With kCodes the result is also written as codes.
template <typename T, bool kGated, bool kCodes>
struct NormModulate : RowFunctor<T, 3> {
  using Base = RowFunctor<T, 3>;
  static constexpr int kPacks = Base::kLanePacks, kMostRegisters = 80;
  static constexpr int kElements = Base::kElements, kSums = 1, kColumnSums = 0;
  static constexpr int kReductions = kCodes ? 3 : 2, kMaximumBehind = kCodes ? 2 : -1;
  struct Lane {
    Pack x[kPacks];  // with kCodes the result, in the end
    float mean;
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, Lane& lane, ColumnSums&,
                                 float (&sums)[kMostSums]) {
    if constexpr (kPhase == 0) begin(a, place, lane, sums);
    if constexpr (kPhase == 1) {
      lane.mean = sums[0] / float(place.width);
      sums[0] = squares(place, lane);
    }
    if constexpr (kPhase == 2) {
      const float inverse = 1.0f / sqrtf(sums[0] / float(place.width) + a.eps);
      sums[0] = 0;
      Base::for_packs([&](int p) { end(a, place, lane, p, inverse, sums[0]); });
    }
    if constexpr (kPhase == 3) write_codes(a, place, lane, scale_of(sums[0], a.is_int8));
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

  static ATELIER_LANE void end(const RowArguments& a, const Place& place, Lane& lane, int p,
                               float inverse, float& largest) {
    float v[kElements], factor[kElements], shift[kElements];
    widen<T>(lane.x[p], v);
    load_plus<T>(a.weight, a.one_plus, place, p, factor);
    load_sample<T>(a.shift, place, p, shift);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) v[i] = (v[i] - lane.mean) * inverse * factor[i] + shift[i];
    const Pack result = narrow<T>(v);
    store_row<T>(a.out, place, p, result);
    if constexpr (kCodes) {
      lane.x[p] = result;
      widen<T>(result, v);
      largest = largest_of<T>(v, largest, place.count<T>(p));
    }
  }

  static ATELIER_LANE void write_codes(const RowArguments& a, const Place& place, const Lane& lane,
                                       float scale) {
    Base::for_packs([&](int p) {
      float v[kElements];
      widen<T>(lane.x[p], v);
      store_codes<T>(a, place, p, v, scale);
    });
    store_scale(a, place, scale);
  }

  static ATELIER_LANE void begin(const RowArguments& a, const Place& place, Lane& lane,
                                 float (&sums)[kMostSums]) {
    Base::load(a.x, place, lane.x);
    [[maybe_unused]] Pack y[kPacks];
    if constexpr (kGated) Base::load(a.y, place, y);
    sums[0] = 0;
    Base::for_packs([&](int p) {
      float v[kElements];
      widen<T>(lane.x[p], v);
      if constexpr (kGated) {
        float of_y[kElements], gate[kElements];
        widen<T>(y[p], of_y);
        load_sample<T>(a.by_sample, place, p, gate);
        ATELIER_UNROLL
        for (int i = 0; i < kElements; ++i) v[i] += gate[i] * of_y[i];
        lane.x[p] = narrow<T>(v);
        store_row<T>(a.second, place, p, lane.x[p]);
        widen<T>(lane.x[p], v);
      }
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) sums[0] += v[i];
    });
  }
};

template <typename T>
using NormModulateAlone = NormModulate<T, false, false>;
template <typename T>
using NormModulateGated = NormModulate<T, true, false>;
template <typename T>
using NormModulateCodes = NormModulate<T, false, true>;
template <typename T>
using NormModulateGatedCodes = NormModulate<T, true, true>;

// The gradient of x, to which `added` is added. Column sums: of shift and of the factor.
template <typename T>
struct NormModulateBackward : RowFunctor<T, 2> {
  using Base = RowFunctor<T, 2>;
  static constexpr int kPacks = Base::kLanePacks, kMostRegisters = 112;
  static constexpr int kElements = Base::kElements, kReductions = 3, kSums = 2, kColumnSums = 2;
  // What is added is read where it is used.
  struct Lane {
    Pack x[kPacks], grad[kPacks];
    float mean, inverse;
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, Lane& lane,
                                 ColumnSums& column_sums, float (&sums)[kMostSums]) {
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
        load_plus<T>(a.weight, a.one_plus, place, p, factor);
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

// The factor of a row with this sum of squares: what its values are multiplied with. `is_constant`:
// it does not depend on them.
ATELIER_LANE float inverse_of(const RowArguments& a, float squares, float width,
                              bool& is_constant) {
  is_constant = false;
  if (!a.is_channel) return 1.0f / sqrtf(squares / width + a.eps);
  const float length = sqrtf(squares);
  is_constant = length < 1e-12f;
  return sqrtf(width) / (is_constant ? 1e-12f : length);
}

template <typename T, int kCount>
ATELIER_LANE float squares_of(const Pack (&packs)[kCount]) {
  float sum = 0;
  ATELIER_UNROLL
  for (int p = 0; p < kCount; ++p) {
    float v[kPackElements<T>];
    widen<T>(packs[p], v);
    ATELIER_UNROLL
    for (int i = 0; i < kPackElements<T>; ++i) sum += v[i] * v[i];
  }
  return sum;
}

// x / rms(x) * factor, to which `added` is added. With is_channel the norm is that over channels,
// and silu may follow.
template <typename T>
struct RmsScale : RowFunctor<T, 3> {
  using Base = RowFunctor<T, 3>;
  static constexpr int kPacks = Base::kLanePacks, kMostRegisters = 80;
  static constexpr int kElements = Base::kElements, kReductions = 1, kSums = 1, kColumnSums = 0;
  struct Lane {
    Pack x[kPacks], added[kPacks];
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, Lane& lane, ColumnSums&,
                                 float (&sums)[kMostSums]) {
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
      Base::for_packs([&](int p) { end(a, place, lane, p, inverse); });
    }
  }

 private:
  static ATELIER_LANE void end(const RowArguments& a, const Place& place, const Lane& lane, int p,
                               float inverse) {
    float v[kElements], added[kElements], factor[kElements];
    load_factor<T>(a.weight, a.by_sample, a.is_gate, place, p, factor);
    widen<T>(lane.x[p], v);
    widen<T>(lane.added[p], added);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) v[i] *= inverse;
    if (a.rounds_normal) widen<T>(narrow<T>(v), v);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      v[i] *= factor[i];
      if (a.silu) v[i] *= sigmoid(v[i]);
      v[i] += added[i];
    }
    store_row<T>(a.out, place, p, narrow<T>(v));
  }
};

// The gradient of x. Column sums: of the factor.
template <typename T>
struct RmsScaleBackward : RowFunctor<T, 2> {
  using Base = RowFunctor<T, 2>;
  static constexpr int kPacks = Base::kLanePacks, kMostRegisters = 112;
  static constexpr int kElements = Base::kElements, kReductions = 2, kSums = 1, kColumnSums = 1;
  struct Lane {
    Pack x[kPacks], grad[kPacks];
    float inverse;
    bool is_constant;
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, Lane& lane,
                                 ColumnSums& column_sums, float (&sums)[kMostSums]) {
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
      float x[kElements], grad[kElements], factor[kElements];
      load_factor<T>(a.weight, a.by_sample, a.is_gate, place, p, factor);
      widen<T>(lane.x[p], x);
      widen<T>(lane.grad[p], grad);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const float normal = x[i] * lane.inverse, scaled = normal * factor[i];
        if (a.silu) grad[i] *= silu_slope(scaled, sigmoid(scaled));
        if constexpr (kPhase == 1) sums[0] += grad[i] * factor[i] * normal;
        if constexpr (kPhase == 2) {
          x[i] = lane.inverse * (grad[i] * factor[i] - normal * mean_dot);
          if (a.partial_sums != nullptr && place.is_active)
            column_sums.at[0][p][i] += grad[i] * normal;
        }
      }
      if constexpr (kPhase == 2) store_row<T>(a.out, place, p, narrow<T>(x));
    });
  }
};

// The two factors of a gated norm and of the norm behind it.
template <typename T>
ATELIER_LANE void load_gate(const RowArguments& a, const Place& place, int p,
                            float (&v)[kPackElements<T>]) {
  load_factor<T>(a.weight, a.by_sample, true, place, p, v);
}
template <typename T>
ATELIER_LANE void load_next(const RowArguments& a, const Place& place, int p,
                            float (&v)[kPackElements<T>]) {
  load_factor<T>(a.next_weight, a.next_by_sample, false, place, p, v);
}

// x becomes x + y * inverse * gate.
template <typename T, int kCount>
ATELIER_LANE void add_gated(const RowArguments& a, const Place& place, Pack (&x)[kCount],
                            const Pack (&y)[kCount], float inverse) {
  constexpr int kElements = kPackElements<T>;
  ATELIER_UNROLL
  for (int p = 0; p < kCount; ++p) {
    float v[kElements], of_y[kElements], gate[kElements];
    load_gate<T>(a, place, p, gate);
    widen<T>(x[p], v);
    widen<T>(y[p], of_y);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) v[i] += of_y[i] * inverse * gate[i];
    x[p] = narrow<T>(v);
  }
}

// sum = x + y / rms(y) * gate, which is written to `second`; then sum / rms(sum) * factor.
template <typename T>
struct RmsGateResidualNormModulate : RowFunctor<T, 3> {
  using Base = RowFunctor<T, 3>;
  static constexpr int kPacks = Base::kLanePacks, kMostRegisters = 96;
  static constexpr int kElements = Base::kElements, kReductions = 2, kSums = 1, kColumnSums = 0;
  struct Lane {
    Pack x[kPacks], y[kPacks];
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, Lane& lane, ColumnSums&,
                                 float (&sums)[kMostSums]) {
    if constexpr (kPhase == 0) {
      Base::load(a.x, place, lane.x);
      Base::load(a.y, place, lane.y);
      sums[0] = squares_of<T>(lane.y);
      return;
    }
    const float inverse = 1.0f / sqrtf(sums[0] / float(place.width) + a.eps);
    if constexpr (kPhase == 1) {
      add_gated<T>(a, place, lane.x, lane.y, inverse);
      Base::for_packs([&](int p) { store_row<T>(a.second, place, p, lane.x[p]); });
      sums[0] = squares_of<T>(lane.x);
    } else {
      Base::for_packs([&](int p) {
        float v[kElements], factor[kElements];
        widen<T>(lane.x[p], v);
        load_next<T>(a, place, p, factor);
        ATELIER_UNROLL
        for (int i = 0; i < kElements; ++i) v[i] *= inverse * factor[i];
        store_row<T>(a.out, place, p, narrow<T>(v));
      });
    }
  }
};

// The gradients of x, which is that of the sum, in `out`, and of y in `second`. `added` is added to
// the gradient of the sum. Column sums: of the gate and of the factor.
template <typename T>
struct RmsGateResidualNormModulateBackward : RowFunctor<T, 2> {
  using Base = RowFunctor<T, 2>;
  static constexpr int kPacks = Base::kLanePacks;
  static constexpr int kElements = Base::kElements, kReductions = 4, kSums = 1, kColumnSums = 2;
  struct Lane {
    Pack sum[kPacks], y[kPacks], grad[kPacks];  // grad becomes that of the sum
    float inverse_y, inverse_sum;
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, Lane& lane,
                                 ColumnSums& column_sums, float (&sums)[kMostSums]) {
    const float mean = sums[0] / float(place.width);
    if constexpr (kPhase == 0) {
      load_all(a, place, lane);
      sums[0] = squares_of<T>(lane.y);
    } else if constexpr (kPhase == 1) {
      lane.inverse_y = 1.0f / sqrtf(mean + a.eps);
      add_gated<T>(a, place, lane.sum, lane.y, lane.inverse_y);
      sums[0] = squares_of<T>(lane.sum);
    } else if constexpr (kPhase == 2) {
      lane.inverse_sum = 1.0f / sqrtf(mean + a.eps);
      sums[0] = dot<1>(a, place, lane.grad, lane.sum, lane.inverse_sum);
    } else if constexpr (kPhase == 3) {
      Base::for_packs([&](int p) {
        lane.grad[p] = through<1>(a, place, p, lane.grad[p], lane.sum[p], lane.inverse_sum, mean,
                                  column_sums, load_added(a, place, p));
        store_row<T>(a.out, place, p, lane.grad[p]);
      });
      sums[0] = dot<0>(a, place, lane.grad, lane.y, lane.inverse_y);
    } else {
      Base::for_packs([&](int p) {
        store_row<T>(a.second, place, p,
                     through<0>(a, place, p, lane.grad[p], lane.y[p], lane.inverse_y, mean,
                                column_sums, {}));
      });
    }
  }

 private:
  static ATELIER_LANE void load_all(const RowArguments& a, const Place& place, Lane& lane) {
    Base::load(a.x, place, lane.sum);
    Base::load(a.y, place, lane.y);
    Base::load(a.grad, place, lane.grad);
  }

  static ATELIER_LANE Pack load_added(const RowArguments& a, const Place& place, int p) {
    return a.added.data != nullptr ? load_row<T>(a.added, place, p) : Pack{};
  }

  // The norm of the sum is norm 1, that of y norm 0.
  template <int kNorm>
  static ATELIER_LANE void factor_of(const RowArguments& a, const Place& place, int p,
                                     float (&factor)[kElements]) {
    if constexpr (kNorm == 1)
      load_next<T>(a, place, p, factor);
    else
      load_gate<T>(a, place, p, factor);
  }

  template <int kNorm>
  static ATELIER_LANE float dot(const RowArguments& a, const Place& place,
                                const Pack (&grads)[kPacks], const Pack (&values)[kPacks],
                                float inverse) {
    float sum = 0;
    Base::for_packs([&](int p) {
      float grad[kElements], v[kElements], factor[kElements];
      factor_of<kNorm>(a, place, p, factor);
      widen<T>(grads[p], grad);
      widen<T>(values[p], v);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) sum += grad[i] * factor[i] * (v[i] * inverse);
    });
    return sum;
  }

  // `to` and the gradient of `value`, which is rounded once.
  template <int kNorm, typename ColumnSums>
  static ATELIER_LANE Pack through(const RowArguments& a, const Place& place, int p,
                                   const Pack& of_result, const Pack& value, float inverse,
                                   float mean_dot, ColumnSums& column_sums, const Pack& to) {
    float grad[kElements], v[kElements], result[kElements], factor[kElements];
    factor_of<kNorm>(a, place, p, factor);
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
