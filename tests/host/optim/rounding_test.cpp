#include "host/optim/rounding.h"

#include <functional>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "support/catch.h"

namespace atelier::optim {
namespace {

using Round = std::function<void(at::Tensor, const RoundingKey&, at::Tensor)>;

// By Philox, and by LibTorch's operators.
const std::vector<Round>& both_ways() {
  static const std::vector<Round> ways = {
      [](at::Tensor value, const RoundingKey& key, at::Tensor leaf) {
        round_stochastically(value, key, leaf);
      },
      [](at::Tensor value, const RoundingKey& key, at::Tensor leaf) {
        round_stochastically(value.clone(), key, at::detail::createCPUGenerator(), leaf);
      }};
  return ways;
}

TEST_CASE("What a short type can represent is not rounded", "[optim]") {
  const at::Tensor patterns = at::arange(1 << 16, at::kInt).to(at::kShort);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor all = patterns.view(dtype);
    for (const Round& round : both_ways()) {
      at::Tensor leaf = at::zeros_like(all);
      round(all.to(at::kFloat), {.seed = 1}, leaf);
      const at::Tensor is_number = all.isnan().logical_not();
      CHECK(
          leaf.view(at::kShort).masked_select(is_number).equal(patterns.masked_select(is_number)));
      CHECK(leaf.isnan().equal(all.isnan()));
    }
  }
}

TEST_CASE("Rounding goes to a neighbour and is right on average", "[optim]") {
  constexpr int64_t kSize = 1 << 18;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const double value : {1.2345678, -0.70001, 3.1e-3, -2e-6, 1000.3}) {
      const at::Tensor wanted = at::full({kSize}, value);
      const double error_of_nearest =
          std::abs(wanted[0].to(dtype).item<double>() - wanted[0].item<double>());
      for (const Round& round : both_ways()) {
        at::Tensor leaf = at::zeros({kSize}, dtype);
        round(wanted, {.seed = 3, .parameter = 1, .step = 9}, leaf);
        const at::Tensor got = leaf.to(at::kDouble);
        const double low = got.min().item<double>(), high = got.max().item<double>();
        CHECK(low < value);
        CHECK(high > value);
        CHECK(got.eq(low).logical_or(got.eq(high)).all().item<bool>());
        // Five standard errors of the mean; float32's own rounding of the value and of sums of
        // few random bits beside them.
        const double spread = high - low;
        const double error = std::abs(got.mean().item<double>() - value);
        CHECK(error < 5 * 0.5 * spread / std::sqrt(kSize) + spread * 0x1p-12);
        CHECK(error < error_of_nearest);
      }
    }
  }
}

TEST_CASE("Equal keys round alike, whatever the threads; others do not", "[optim]") {
  at::manual_seed(1);
  const at::Tensor values = at::randn({100003});
  const RoundingKey key{.seed = 5, .parameter = 2, .step = 7};
  const auto rounded = [&](const Round& round, const RoundingKey& with) {
    at::Tensor leaf = at::zeros(values.sizes(), at::kBFloat16);
    round(values, with, leaf);
    return leaf;
  };
  for (const Round& round : both_ways()) {
    const at::Tensor first = rounded(round, key);
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    CHECK(first.equal(rounded(round, key)));
    at::set_num_threads(threads);
    CHECK_FALSE(first.equal(rounded(round, {.seed = 6, .parameter = 2, .step = 7})));
    CHECK_FALSE(first.equal(rounded(round, {.seed = 5, .parameter = 3, .step = 7})));
    CHECK_FALSE(first.equal(rounded(round, {.seed = 5, .parameter = 2, .step = 8})));
  }
}

}  // namespace
}  // namespace atelier::optim
