// The group norm of images whose channels lie side by side: a row is a pixel, a sample an image.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

// Writes no rows. Column sums: of what x is above `by_sample`, a value of the same channel, and of
// the squares of that, so that a mean far from zero does not swallow the deviation.
template <typename T>
struct ChannelSums : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = Base::kElements, kColumnSums = 2;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&,
                                 ColumnSums& column_sums, float (&)[kMostSums]) {
    typename Base::Packs packs;
    Base::load(a.x, place, packs);
    Base::for_packs([&](int p) {
      float x[kElements], origin[kElements];
      widen<T>(load_origin(a, place, p), origin);
      widen<T>(packs[p], x);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const float above = place.is_active ? x[i] - origin[i] : 0.0f;
        column_sums.at[0][p][i] += above;
        column_sums.at[1][p][i] += above * above;
      }
    });
  }

 private:
  static ATELIER_LANE Pack load_origin(const RowArguments& a, const Place& place, int p) {
    const auto* origin = static_cast<const typename T::Bits*>(a.by_sample.data);
    return load_pack<T>(origin + place.sample * a.by_sample.stride + place.column_of(p),
                        place.count<T>(p), a.by_sample.is_aligned);
  }
};

// x * weight + shift, both of a sample; silu may follow.
template <typename T>
struct ScaleChannels : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = Base::kElements;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    typename Base::Packs packs;
    Base::load(a.x, place, packs);
    Base::for_packs([&](int p) {
      float x[kElements], factor[kElements], shift[kElements];
      load_sample<T>(a.weight, place, p, factor);
      load_sample<T>(a.shift, place, p, shift);
      widen<T>(packs[p], x);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        x[i] = x[i] * factor[i] + shift[i];
        if (a.silu) x[i] *= sigmoid(x[i]);
      }
      store_row<T>(a.out, place, p, narrow<T>(x));
    });
  }
};

// What both halves of the backward pass make of a pack: x above the mean of its group, `by_sample`,
// and the gradient of x * weight + shift.
template <typename T>
ATELIER_LANE void load_gradient(const RowArguments& a, const Place& place, int p,
                                const float (&factor)[kPackElements<T>], const Pack& of_x,
                                const Pack& of_result, float (&above)[kPackElements<T>],
                                float (&grad)[kPackElements<T>]) {
  constexpr int kElements = kPackElements<T>;
  float x[kElements], shift[kElements], mean[kElements];
  load_sample<T>(a.shift, place, p, shift);
  load_sample<T>(a.by_sample, place, p, mean);
  widen<T>(of_x, x);
  widen<T>(of_result, grad);
  ATELIER_UNROLL
  for (int i = 0; i < kElements; ++i) {
    if (a.silu) {
      const float v = x[i] * factor[i] + shift[i];
      grad[i] *= silu_slope(v, sigmoid(v));
    }
    above[i] = x[i] - mean[i];
  }
}

// Writes no rows. Column sums: of the gradient, and of it times x above the mean.
template <typename T>
struct ChannelGradientSums : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = Base::kElements, kColumnSums = 2, kMostRegisters = 112;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&,
                                 ColumnSums& column_sums, float (&)[kMostSums]) {
    typename Base::Packs x, grads;
    Base::load(a.x, place, x);
    Base::load(a.grad, place, grads);
    Base::for_packs([&](int p) {
      float factor[kElements], above[kElements], grad[kElements];
      load_sample<T>(a.weight, place, p, factor);
      load_gradient<T>(a, place, p, factor, x[p], grads[p], above, grad);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const float counted = place.is_active ? grad[i] : 0.0f;
        column_sums.at[0][p][i] += counted;
        column_sums.at[1][p][i] += counted * above[i];
      }
    });
  }
};

// The gradient of x: that of x * weight + shift times weight, less `next_by_sample`, and less
// `next_weight` times x above the mean.
template <typename T>
struct ChannelGradients : PlainFunctor<T> {
  using Base = PlainFunctor<T>;
  static constexpr int kElements = Base::kElements, kMostRegisters = 80;

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    typename Base::Packs x, grads;
    Base::load(a.x, place, x);
    Base::load(a.grad, place, grads);
    Base::for_packs([&](int p) {
      float factor[kElements], above[kElements], grad[kElements], slope[kElements],
          offset[kElements];
      load_sample<T>(a.weight, place, p, factor);
      load_gradient<T>(a, place, p, factor, x[p], grads[p], above, grad);
      load_sample<T>(a.next_weight, place, p, slope);
      load_sample<T>(a.next_by_sample, place, p, offset);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i)
        grad[i] = grad[i] * factor[i] - offset[i] - above[i] * slope[i];
      store_row<T>(a.out, place, p, narrow<T>(grad));
    });
  }
};

extern const RowKernel channel_sums_rows = kernel_of<ChannelSums>();
extern const RowKernel scale_channels_rows = kernel_of<ScaleChannels>();
extern const RowKernel channel_gradient_sums_rows = kernel_of<ChannelGradientSums>();
extern const RowKernel channel_gradients_rows = kernel_of<ChannelGradients>();

}  // namespace atelier::ops::cuda
