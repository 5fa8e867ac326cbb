#include "host/generate/noise.h"

#include <cmath>
#include <numbers>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

namespace atelier::generate {
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

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

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

}  // namespace atelier::generate
