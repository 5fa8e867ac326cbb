// Rows as codes of 8 bits with a scale a row, and what products of codes give.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

// Codes of x, times the columns of `weight` where there are any.
template <typename T>
struct QuantizeRows : RowFunctor<T, 4> {
  using Base = RowFunctor<T, 4>;
  static constexpr int kPacks = Base::kLanePacks, kMostRegisters = 80;
  static constexpr int kElements = Base::kElements, kReductions = 1, kSums = 1, kColumnSums = 0;
  static constexpr int kMaximumBehind = 0;
  struct Lane {
    Pack x[kPacks];
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
      if (a.weight.data != nullptr) {
        float factor[kElements];
        load_sample<T>(a.weight, place, p, factor);
        ATELIER_UNROLL
        for (int i = 0; i < kElements; ++i) v[i] *= factor[i];
      }
      if constexpr (kPhase == 0)
        sums[0] = largest_of<T>(v, sums[0], place.count<T>(p));
      else
        store_codes<T>(a, place, p, v, scale);
    });
    if constexpr (kPhase == 1) store_scale(a, place, scale);
  }
};

// What codes stand for: code * scale, rounded once.
template <typename T>
struct DrawCodes : PlainFunctor<T, 8> {
  using Base = PlainFunctor<T, 8>;
  static constexpr int kElements = Base::kElements;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    Codes<T> codes[Base::kLanePacks];
    Base::for_packs([&](int p) { codes[p] = load_codes<T>(a.x, place, p); });
    const float scale = place.is_active ? a.row_scales[place.row] : 0.0f;
    Base::for_packs([&](int p) {
      float v[kElements];
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i)
        v[i] = value_of(codes[p].words[i / 4] >> (i % 4 * 8) & 0xffu, a.is_int8) * scale;
      store_row<T>(a.out, place, p, narrow<T>(v));
    });
  }
};

// int32 sums of products of codes, x, times the scales of their row and of their column, `weight`;
// the result is rounded before a bias, `shift`, is added to it, as it would be without this kernel.
template <typename T>
struct ScaleSums : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = Base::kElements;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    Pack sums[2][kElements / 4];
    Base::for_packs([&](int p) { load_sums(a.x, place, p, sums[p]); });
    const float scale = place.is_active ? a.row_scales[place.row] : 0.0f;
    Base::for_packs([&](int p) { end(a, place, p, sums[p], scale); });
  }

 private:
  static ATELIER_LANE void load_sums(const Input& from, const Place& place, int p,
                                     Pack (&sums)[kElements / 4]) {
    const auto* row = static_cast<const uint32_t*>(from.data) + place.row * from.stride;
    ATELIER_UNROLL
    for (int part = 0; part < kElements / 4; ++part) {
      sums[part] = load_pack<Float32>(row + place.column_of(p) + 4 * part,
                                      place.count<T>(p) - 4 * part, from.is_aligned);
    }
  }

  static ATELIER_LANE void end(const RowArguments& a, const Place& place, int p,
                               const Pack (&sums)[kElements / 4], float scale) {
    float v[kElements], factor[kElements];
    load_sample<T>(a.weight, place, p, factor);
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i)
      v[i] = float(int32_t(sums[i / 4].words[i % 4])) * scale * factor[i];
    if (a.shift.data != nullptr) {
      float bias[kElements];
      load_sample<T>(a.shift, place, p, bias);
      widen<T>(narrow<T>(v), v);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) v[i] += bias[i];
    }
    store_row<T>(a.out, place, p, narrow<T>(v));
  }
};

extern const RowKernel quantize_rows_rows = kernel_of<QuantizeRows>();
extern const RowKernel draw_codes_rows = kernel_of<DrawCodes>();
extern const RowKernel scale_sums_rows = kernel_of<ScaleSums>();

}  // namespace atelier::ops::cuda
