#include "host/random/noise.h"

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "host/random/counter.h"
#include "support/catch.h"

namespace atelier::random {
namespace {

TEST_CASE("Philox gives the published answers", "[noise]") {
  using Words = std::array<uint32_t, 4>;
  REQUIRE(philox4x32({0, 0, 0, 0}, {0, 0}) ==
          Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr uint32_t kOnes = 0xffffffff;
  REQUIRE(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
          Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  REQUIRE(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
          Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("Noise is normal", "[noise]") {
  std::vector<float> values(1 << 20);
  fill_normal({.seed = 7}, values);
  double moment[5] = {};
  int64_t beyond_2 = 0;
  for (const float v : values) {
    REQUIRE(std::isfinite(v));
    double power = 1;
    for (double& m : moment) {
      m += power / static_cast<double>(values.size());
      power *= v;
    }
    beyond_2 += std::fabs(v) > 2.0f;
  }
  // Five standard errors of each moment over 2^20 values.
  REQUIRE(moment[1] == Approx(0).margin(0.005));
  REQUIRE(moment[2] == Approx(1).margin(0.007));
  REQUIRE(moment[3] == Approx(0).margin(0.019));
  REQUIRE(moment[4] == Approx(3).margin(0.05));
  REQUIRE(static_cast<double>(beyond_2) / static_cast<double>(values.size()) ==
          Approx(0.0455).margin(0.0011));
}

TEST_CASE("Noise depends on seed, sample and step, and neighbours are independent", "[noise]") {
  constexpr int64_t kSize = 1 << 16;
  const at::Tensor base = normal_noise({.seed = 1}, {kSize});
  const NoiseKey others[] = {{.seed = 2},
                             {.seed = uint64_t{1} << 32 | 1},
                             {.seed = 1, .sample = 1},
                             {.seed = 1, .step = 1}};
  for (const NoiseKey& key : others) {
    const at::Tensor other = normal_noise(key, {kSize});
    const double correlation = at::mean(base * other).item<double>();
    REQUIRE(std::fabs(correlation) < 5.0 / std::sqrt(kSize));
  }
  const double neighbours =
      at::mean(base.slice(0, 0, kSize - 1) * base.slice(0, 1, kSize)).item<double>();
  REQUIRE(std::fabs(neighbours) < 5.0 / std::sqrt(kSize));
}

TEST_CASE("Noise does not depend on threads or on the length asked for", "[noise]") {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = normal_noise({.seed = 3, .sample = 4}, {16, 83, 91});
  at::set_num_threads(std::max(threads, 2));
  const at::Tensor several = normal_noise({.seed = 3, .sample = 4}, {16, 83, 91});
  at::set_num_threads(threads);
  REQUIRE(at::equal(one, several));
  std::vector<float> prefix(1001);
  fill_normal({.seed = 3, .sample = 4}, prefix);
  REQUIRE(std::equal(prefix.begin(), prefix.end(), one.data_ptr<float>()));
}

TEST_CASE("Streams of one seed are seeds of their own", "[random]") {
  REQUIRE(stream_seed(7, Stream::kNoise) != stream_seed(7, Stream::kTimestep));
  REQUIRE(stream_seed(7, Stream::kNoise) != stream_seed(8, Stream::kNoise));
  REQUIRE(stream_seed(7, Stream::kOrder) == stream_seed(7, Stream::kOrder));
}

TEST_CASE("Uniform numbers fill their range evenly", "[random]") {
  constexpr int kCount = 100'000;
  double sum = 0, squares = 0;
  std::vector<int> hits(7);
  for (uint32_t i = 0; i < kCount; ++i) {
    const double u = uniform(3, i, 5);
    REQUIRE((u >= 0 && u < 1));
    sum += u;
    squares += u * u;
    ++hits[below(7, 4, i, 5)];
  }
  REQUIRE(sum / kCount == Approx(0.5).margin(0.005));
  REQUIRE(squares / kCount == Approx(1.0 / 3).margin(0.005));
  for (const int h : hits) REQUIRE(h == Approx(kCount / 7.0).epsilon(0.05));
}

}  // namespace
}  // namespace atelier::random
