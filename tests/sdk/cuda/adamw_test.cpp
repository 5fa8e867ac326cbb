// The step of AdamW with 8 bits by the kernel of GPUs, played on the CPU, beside its formula in
// float64. host/optim/adamw_kernel_test.cpp compares it with the optimizer to the bit.
#include <algorithm>
#include <bit>

#include "atelier/host/adamw_8bit.h"

#include "sdk/cuda/row_player.h"
#include "support/tensors.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using test::error;

// Codes of zeros, in a map with equal steps from `least` to 1.
MomentCodes zero_codes(int64_t numel, float least) {
  MomentCodes moment;
  moment.values = at::linspace(least, 1, 256);
  const Tensor halfway =
      (moment.values.narrow(0, 0, 255) + moment.values.narrow(0, 1, 255)).div_(2);
  moment.borders = at::cat({halfway, at::full({1}, INFINITY)});
  // The least float of those that begin alike: of negative ones that with the largest magnitude.
  moment.first_codes = at::empty({1 << 16}, at::kByte);
  auto* first_codes = moment.first_codes.mutable_data_ptr<uint8_t>();
  const float* borders = halfway.const_data_ptr<float>();
  for (uint32_t upper = 0; upper < 1 << 16; ++upper) {
    const uint32_t lower = upper >> 15 ? 0xffffu : 0u;
    const auto from = std::bit_cast<float>(upper << 16 | lower);
    first_codes[upper] =
        static_cast<uint8_t>(std::lower_bound(borders, borders + 255, from) - borders);
  }
  moment.absmax = at::zeros({(numel + 255) / 256});
  moment.codes = at::zeros({numel}, at::kByte);
  return moment;
}

Tensor drawn(const MomentCodes& moment) {
  const Tensor values = moment.values.index_select(0, moment.codes.to(at::kInt));
  const Tensor scales = moment.absmax.repeat_interleave(256).narrow(0, 0, values.numel());
  return (values * scales).to(at::kDouble);
}

// Half a step of the map, of the largest value of each block.
Tensor half_steps(const MomentCodes& moment) {
  const Tensor step = (moment.values[1] - moment.values[0]) / 2;
  return (moment.absmax * step).repeat_interleave(256).narrow(0, 0, moment.codes.numel());
}

}  // namespace

TEST_CASE("The played step of AdamW follows its formula, and rounds moments to the nearest codes",
          "[ops][cuda]") {
  at::manual_seed(31);
  const double rate = 3e-3, beta1 = 0.9, beta2 = 0.99, decay = 0.98;
  for (const int64_t numel : {1, 7, 255, 256, 257, 2049, 5000}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const bool has_master : {false, true}) {
        if (has_master && dtype == at::kFloat) continue;
        INFO(numel << " numbers, " << toString(dtype) << ", master " << has_master);
        Tensor leaf = at::randn({numel}).to(dtype);
        AdamW8BitStep step{.leaf = leaf,
                           .gradient = at::randn({numel}).to(dtype),
                           .master = has_master ? leaf.to(at::kFloat) : Tensor(),
                           .exp_avg = zero_codes(numel, -1.0f),
                           .exp_avg_sq = zero_codes(numel, 0.0f),
                           .grad_scale = at::full({}, 2.0),
                           .is_skipped = at::zeros({}),
                           .corrections = at::tensor({0.0f, 0.0f}),
                           .beta1 = beta1,
                           .beta2 = beta2,
                           .eps = 1e-8,
                           .decay = decay};
        Tensor weight = leaf.to(at::kDouble);
        for (int count = 1; count <= 3; ++count) {
          const double root = std::sqrt(1 - std::pow(beta2, count));
          const double size = rate / (1 - std::pow(beta1, count));
          step.corrections = at::tensor({size, root}, at::kFloat);
          step.step = static_cast<uint32_t>(count);
          const Tensor grad = step.gradient.to(at::kDouble) / 2;
          const Tensor first = beta1 * drawn(step.exp_avg) + (1 - beta1) * grad;
          const Tensor second = beta2 * drawn(step.exp_avg_sq) + (1 - beta2) * grad.square();
          weight = weight * decay - size * first / (second.sqrt() / root + 1e-8);
          REQUIRE(has_adamw_8bit(leaf));
          adamw_8bit(step);
          CHECK(((drawn(step.exp_avg) - first).abs() <= half_steps(step.exp_avg) * 1.001)
                    .all()
                    .item<bool>());
          CHECK(((drawn(step.exp_avg_sq) - second).abs() <= half_steps(step.exp_avg_sq) * 1.001)
                    .all()
                    .item<bool>());
          if (has_master) {
            CHECK(error(step.master, weight) < 1e-6);
            CHECK(at::equal(leaf, step.master.to(dtype)));
          } else {  // up or down to a neighbour
            CHECK(error(leaf, weight) < (dtype == at::kFloat  ? 1e-6
                                         : dtype == at::kHalf ? 1e-3
                                                              : 8e-3));
            weight = leaf.to(at::kDouble);
          }
        }
        const test::Tensors all = {leaf, step.exp_avg.codes, step.exp_avg.absmax,
                                   step.exp_avg_sq.codes, step.exp_avg_sq.absmax};
        test::Tensors before;
        for (const Tensor& t : all) before.push_back(t.clone());
        step.is_skipped = at::ones({});
        step.grad_scale = at::full({}, NAN);
        adamw_8bit(step);
        CHECK(test::same_bits(all, before));
      }
    }
  }
}

}  // namespace atelier::ops
