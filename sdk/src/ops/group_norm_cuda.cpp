#include "ops/cuda/row_call.h"
#include "ops/group_norm.h"

namespace atelier::ops::cuda {

// Defined in group_norm.cu.
extern const RowKernel channel_sums_rows, scale_channels_rows, channel_gradient_sums_rows,
    channel_gradients_rows;

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
    RowCall sums(channel_sums_rows, rows, images, channels(), false, 2);
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

void group_norm_forward(const Tensor& rows, const Tensor& weight, const Tensor& bias,
                        const Segments& images, int64_t groups, double eps, bool silu,
                        Tensor& out) {
  const GroupNorm norm(rows, images, groups, eps);
  const Tensor factors = norm.factors(weight), shifts = norm.shifts(weight, bias);
  RowCall call(scale_channels_rows, rows, images, rows.size(1), false, 0);
  call.arguments.x = rows_of(rows);
  call.arguments.weight = wide_columns(factors);
  call.arguments.shift = wide_columns(shifts);
  call.arguments.silu = silu;
  call.arguments.out = output_of(out);
  call.run();
}

// The gradient g of the affine values comes through x's mean and deviation d in its group:
// (weight g - mean(weight g) - normal mean(weight g normal)) / d.
void group_norm_backward(const Tensor& grad, const Tensor& rows, const Tensor& weight,
                         const Tensor& bias, const Segments& images, int64_t groups, double eps,
                         bool silu, Tensor& grad_rows, Tensor& grad_weight, Tensor& grad_bias) {
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
  RowCall sums(channel_gradient_sums_rows, rows, images, rows.size(1), false, 2);
  put(sums.arguments);
  const Tensor totals = sums.run();
  const Tensor plain = norm.grouped(totals.select(1, 0)),
               dot = norm.grouped(totals.select(1, 1)) * norm.inverse;
  if (grad_weight.defined()) grad_weight.copy_(dot.sum(0).view({rows.size(1)}));
  if (grad_bias.defined()) grad_bias.copy_(plain.sum(0).view({rows.size(1)}));
  if (!grad_rows.defined()) return;

  const Tensor wide = norm.grouped(weight);
  const Tensor offsets = norm.columns(norm.inverse * (wide * plain).sum(2, true) / norm.values());
  const Tensor slopes =
      norm.columns(norm.inverse.square() * (wide * dot).sum(2, true) / norm.values());
  RowCall call(channel_gradients_rows, rows, images, rows.size(1), false, 0);
  put(call.arguments);
  call.arguments.next_weight = wide_columns(slopes);
  call.arguments.next_by_sample = wide_columns(offsets);
  call.arguments.out = output_of(grad_rows);
  call.run();
}

const DeviceKernels group_norm(row_device(), group_norm_kernels,
                               {.forward = group_norm_forward,
                                .backward = group_norm_backward,
                                .limits = {}});

}  // namespace
}  // namespace atelier::ops::cuda
