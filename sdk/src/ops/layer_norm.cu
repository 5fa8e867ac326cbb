// Norms by mean and deviation, and what is done beside them in the same pass over memory.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

// A factor, which may be given as one less.
template <typename T>
ATELIER_LANE void load_plus(const Input& from, bool one_plus, const Place& place, int p,
                            float (&factor)[kPackElements<T>]) {
  load_sample<T>(from, place, p, factor);
  ATELIER_UNROLL
  for (int i = 0; i < kPackElements<T>; ++i) factor[i] += one_plus ? 1.0f : 0.0f;
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

extern const RowKernel norm_modulate_rows = kernel_of<NormModulateAlone>();
extern const RowKernel norm_modulate_backward_rows = kernel_of<NormModulateBackward>();
extern const RowKernel norm_modulate_codes_rows = kernel_of<NormModulateCodes>();
extern const RowKernel gate_residual_norm_modulate_rows = kernel_of<NormModulateGated>();
extern const RowKernel gate_residual_norm_modulate_codes_rows = kernel_of<NormModulateGatedCodes>();

}  // namespace atelier::ops::cuda
