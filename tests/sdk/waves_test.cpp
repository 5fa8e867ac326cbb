#include "atelier/nn/waves.h"

#include <cmath>

#include "support/tensors.h"

namespace atelier {

TEST_CASE("Time in channels is cosines, then sines, at falling frequencies", "[waves]") {
  const at::Tensor channels = nn::time_channels(at::tensor({0.0f, 0.5f}), 8, 1000.0);
  CHECK(channels.sizes() == at::IntArrayRef({2, 8}));
  CHECK(at::equal(channels[0], at::tensor({1.0f, 1.0f, 1.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f})));
  for (int64_t i = 0; i < 4; ++i) {
    const double angle = 500.0 * std::pow(10000.0, -static_cast<double>(i) / 4);
    CHECK(channels[1][i].item<double>() == Approx(std::cos(angle)).margin(1e-4));
    CHECK(channels[1][i + 4].item<double>() == Approx(std::sin(angle)).margin(1e-4));
  }
}

TEST_CASE("Angles of an axis fall from its positions by the base", "[waves]") {
  const at::Tensor positions = at::tensor({0.0, 3.0, -2.0});
  const at::Tensor angles = nn::rope_angles(positions.to(at::kDouble), 4, 100.0);
  CHECK(angles.scalar_type() == at::kDouble);
  CHECK(
      at::allclose(angles, at::tensor({0.0, 0.0, 3.0, 0.3, -2.0, -0.2}, at::kDouble).view({3, 2})));
}

TEST_CASE("Rows of each sample are turned from position 0", "[waves]") {
  const nn::Waves waves = nn::row_waves(Segments({3, 2}), 4, 100.0, at::kCPU);
  CHECK(waves.cos.sizes() == at::IntArrayRef({5, 2}));
  CHECK(at::equal(waves.sin.narrow(0, 0, 2), waves.sin.narrow(0, 3, 2)));
  CHECK(waves.sin[2][1].item<double>() == Approx(std::sin(2.0 / 10)));
  CHECK(waves.cos[2][0].item<double>() == Approx(std::cos(2.0)));
}

TEST_CASE("Each axis turns its own channels of a head", "[waves]") {
  const at::Tensor positions =
      at::tensor({0.0, 1.0, 2.0, 3.0, -1.0, 5.0}, at::kDouble).view({2, 3});
  const int64_t channels[] = {2, 4, 2};
  const nn::Waves waves = nn::axis_waves(positions, channels, 100.0, at::kCPU);
  const at::Tensor angles =
      at::tensor({0.0, 1.0, 0.1, 2.0, 3.0, -1.0, -0.1, 5.0}, at::kDouble).view({2, 4});
  CHECK(waves.cos.scalar_type() == at::kFloat);
  CHECK(at::allclose(waves.cos, at::cos(angles).to(at::kFloat)));
  CHECK(at::allclose(waves.sin, at::sin(angles).to(at::kFloat)));
  CHECK(test::error_of([&] {
          nn::axis_waves(positions.narrow(1, 0, 2), channels, 100.0, at::kCPU);
        }).code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("Tables that were made last are kept, the oldest goes", "[waves]") {
  nn::RecentTables<int, at::Tensor> tables;
  int made = 0;
  const auto get = [&](int key) {
    return tables.get(key, [&] {
      ++made;
      return at::full({1}, key);
    });
  };
  for (const int key : {1, 2, 3, 4, 1}) CHECK(get(key).item<int>() == key);
  CHECK(made == 4);
  get(5);  // in the place of 2, because 1 was used since
  get(1);
  CHECK(made == 5);
  get(2);
  CHECK(made == 6);
  const c10::InferenceMode inference;
  CHECK_FALSE(get(9).is_inference());
}

}  // namespace atelier
