#include "ops/cuda/group_norm_cuda.h"

#include "ops/cuda/row_call.h"

namespace atelier::ops::cuda {
namespace {

using at::Tensor;

// Group norms of images, one below the other, [N, C]. Of each group: [S, groups, 1] in float64.
struct GroupNorm {
  const Tensor& rows;
  const Segments& images;
  int64_t groups;
  Tensor mean, inverse;  // of the standard deviation

  // Sums over the pixels of each channel, around a pixel of it: what they make of a group's mean
  // and variance is added up in float64.
  GroupNorm(const Tensor& rows, const Segments& images, int64_t groups, double eps)
      : rows(rows), images(images), groups(groups) {
    const int64_t pixels = images.length(0);
    const Tensor origin = rows.view({images.count(), pixels, channels()}).select(1, 0);
    RowCall sums(RowOperator::channel_sums, rows, images, channels(), false, 2);
    sums.arguments.x = rows_of(rows);
    sums.arguments.by_sample = columns_of(origin, rows);
    const Tensor totals = sums.run().to(at::kDouble);

    const auto n = static_cast<double>(pixels);
    const Tensor above = totals.select(1, 0) / n;
    const Tensor squares = grouped(totals.select(1, 1) - above * totals.select(1, 0));
    const Tensor means = grouped(above + origin);
    mean = means.mean(2, true);
    const Tensor variance =
        (squares.sum(2, true) + n * (means - mean).square().sum(2, true)) / values();
    inverse = at::rsqrt(variance + eps);
  }

  int64_t channels() const { return rows.size(1); }
  // Numbers of a group.
  double values() const {
    return static_cast<double>(images.length(0)) * static_cast<double>(channels() / groups);
  }
  // [..., C] as [-1, groups, C / groups], in float64.
  Tensor grouped(const Tensor& t) const {
    return t.to(at::kDouble).reshape({-1, groups, channels() / groups});
  }
  // [S, groups, 1 or C / groups] as [S, C], in float32.
  Tensor columns(const Tensor& t) const {
    return t.expand({images.count(), groups, channels() / groups})
        .to(at::kFloat)
        .reshape({images.count(), channels()});
  }
  Tensor factors(const Tensor& weight) const { return columns(grouped(weight) * inverse); }
  Tensor shifts(const Tensor& weight, const Tensor& bias) const {
    return columns(grouped(bias) - mean * (grouped(weight) * inverse));
  }
};

}  // namespace

Tensor group_norm(const Tensor& rows, const Tensor& weight, const Tensor& bias,
                  const Segments& images, int64_t groups, double eps, bool silu) {
  const GroupNorm norm(rows, images, groups, eps);
  const Tensor factors = norm.factors(weight), shifts = norm.shifts(weight, bias);
  Tensor out = packed_like(rows);
  RowCall call(RowOperator::scale_channels, rows, images, rows.size(1), false, 0);
  call.arguments.x = rows_of(rows);
  call.arguments.weight = wide_columns(factors);
  call.arguments.shift = wide_columns(shifts);
  call.arguments.silu = silu;
  call.arguments.out = output_of(out);
  call.run();
  return out;
}

// The gradient g of the affine values comes through x's mean and deviation d in its group:
// (weight g - mean(weight g) - normal mean(weight g normal)) / d.
std::array<Tensor, 3> group_norm_backward(const Tensor& grad, const Tensor& rows,
                                          const Tensor& weight, const Tensor& bias,
                                          const Segments& images, int64_t groups, double eps,
                                          bool silu, std::array<bool, 3> wanted) {
  const GroupNorm norm(rows, images, groups, eps);
  const Tensor factors = norm.factors(weight), shifts = norm.shifts(weight, bias),
               means = norm.columns(norm.mean);
  const auto put = [&](RowArguments& arguments) {
    arguments.x = rows_of(rows);
    arguments.grad = rows_of(grad);
    arguments.weight = wide_columns(factors);
    arguments.shift = wide_columns(shifts);
    arguments.by_sample = wide_columns(means);
    arguments.silu = silu;
  };
  RowCall sums(RowOperator::channel_gradient_sums, rows, images, rows.size(1), false, 2);
  put(sums.arguments);
  const Tensor totals = sums.run();
  const Tensor plain = norm.grouped(totals.select(1, 0)),
               dot = norm.grouped(totals.select(1, 1)) * norm.inverse;
  const auto of_channels = [&](const Tensor& t, const Tensor& like, bool is_wanted) {
    return is_wanted ? t.sum(0).view({rows.size(1)}).to(like.scalar_type()) : Tensor();
  };
  std::array<Tensor, 3> result = {Tensor(), of_channels(dot, weight, wanted[1]),
                                  of_channels(plain, bias, wanted[2])};
  if (!wanted[0]) return result;

  const Tensor wide = norm.grouped(weight);
  const Tensor offsets = norm.columns(norm.inverse * (wide * plain).sum(2, true) / norm.values());
  const Tensor slopes =
      norm.columns(norm.inverse.square() * (wide * dot).sum(2, true) / norm.values());
  result[0] = packed_like(rows);
  RowCall call(RowOperator::channel_gradients, rows, images, rows.size(1), false, 0);
  put(call.arguments);
  call.arguments.next_weight = wide_columns(slopes);
  call.arguments.next_by_sample = wide_columns(offsets);
  call.arguments.out = output_of(result[0]);
  call.run();
  return result;
}

}  // namespace atelier::ops::cuda
