#include "host/random/noise.h"

#include <array>
#include <cmath>
#include <numbers>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "host/random/counter.h"

namespace atelier::random {
namespace {

// Two independent normal values from 64 random bits (Box and Muller).
std::array<float, 2> normal_pair(uint32_t a, uint32_t b) {
  constexpr double kStep = 0x1p-32;
  const double radius = std::sqrt(-2.0 * std::log((a + 0.5) * kStep));
  const double angle = 2.0 * std::numbers::pi * (b + 0.5) * kStep;
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

}  // namespace

void fill_normal(const NoiseKey& key, std::span<float> out) {
  const std::array<uint32_t, 2> philox_key = {static_cast<uint32_t>(key.seed),
                                              static_cast<uint32_t>(key.seed >> 32)};
  const auto size = static_cast<int64_t>(out.size());
  at::parallel_for(0, (size + 3) / 4, /*grain_size=*/4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto bits = philox4x32({static_cast<uint32_t>(i), key.sample, key.step, 0}, philox_key);
      const auto first = normal_pair(bits[0], bits[1]);
      const auto second = normal_pair(bits[2], bits[3]);
      const float values[4] = {first[0], first[1], second[0], second[1]};
      for (int64_t k = 0; k < 4 && 4 * i + k < size; ++k) out[4 * i + k] = values[k];
    }
  });
}

at::Tensor normal_noise(const NoiseKey& key, at::IntArrayRef shape) {
  at::Tensor noise = at::empty(shape, at::kFloat);
  fill_normal(key, {noise.data_ptr<float>(), static_cast<size_t>(noise.numel())});
  return noise;
}

}  // namespace atelier::random
