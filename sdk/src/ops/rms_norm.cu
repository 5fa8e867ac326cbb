// Norms by the root of the mean square and those of channels, and what is done beside them in the
// same pass over memory.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

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

extern const RowKernel rms_scale_rows = kernel_of<RmsScale>();
extern const RowKernel rms_scale_backward_rows = kernel_of<RmsScaleBackward>();
extern const RowKernel rms_gate_residual_norm_modulate_rows =
    kernel_of<RmsGateResidualNormModulate>();
extern const RowKernel rms_gate_residual_norm_modulate_backward_rows =
    kernel_of<RmsGateResidualNormModulateBackward>();

}  // namespace atelier::ops::cuda
