#include "host/optim/rounding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <mutex>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "host/random/counter.h"

namespace atelier::optim {
namespace {

// bfloat16 is the upper half of a float: random lower bits carry into it as often as they should.
c10::BFloat16 round(float value, uint16_t random, c10::BFloat16 /*type*/) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (!std::isfinite(value)) return c10::BFloat16(value);
  return c10::BFloat16(static_cast<uint16_t>((bits + random) >> 16), c10::BFloat16::from_bits());
}

c10::Half round(float value, uint16_t random, c10::Half /*type*/) {
  if (!std::isfinite(value)) return c10::Half(value);
  int exponent;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - 11, -24);  // of the last place
  const double places = std::floor(std::ldexp(double{value}, -unit) + random * 0x1p-16);
  return c10::Half(static_cast<float>(std::copysign(std::ldexp(places, unit), value)));
}

template <typename T>
void round_all(const float* value, const RoundingKey& key, T* leaf, int64_t size) {
  constexpr int64_t kAtOnce = 8;  // 16 bits for each
  const auto words_key = philox_key(key);
  const uint64_t first = key.first / kAtOnce;
  at::parallel_for(0, (size + kAtOnce - 1) / kAtOnce, 2048, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t place = first + static_cast<uint64_t>(i);
      const auto words = random::philox4x32({static_cast<uint32_t>(place), key.parameter, key.step,
                                             static_cast<uint32_t>(place >> 32)},
                                            words_key);
      const auto halves = std::bit_cast<std::array<uint16_t, kAtOnce>>(words);
      const int64_t count = std::min(kAtOnce, size - i * kAtOnce);
      for (int64_t k = 0; k < count; ++k) {
        leaf[i * kAtOnce + k] = round(value[i * kAtOnce + k], halves[k], T());
      }
    }
  });
}

// 2^exponent, exact on every device; in int32, from -126 to 127.
at::Tensor power_of_two(const at::Tensor& exponent) {
  return exponent.add(127).bitwise_left_shift_(23).view(at::kFloat);
}

// float16 on any device: whole places of the last bit, rounded down after a random part is added.
at::Tensor half_places(const at::Tensor& value, const at::Generator& generator) {
  const at::Tensor unit = std::get<1>(at::frexp(value)).sub_(11).clamp_min_(-24);
  // 11 bits of places and 12 behind them fit a float, so that whole places stay what they are.
  const at::Tensor random = at::empty_like(value).random_(0, 1 << 12, generator).mul_(0x1p-12);
  const at::Tensor places = value.mul(power_of_two(unit.neg())).add_(random).floor_();
  return at::copysign(places.mul_(power_of_two(unit)), value);
}

}  // namespace

std::array<uint32_t, 2> philox_key(const RoundingKey& key) {
  return {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)};
}

void round_stochastically(const at::Tensor& value, const RoundingKey& key, at::Tensor leaf) {
  if (leaf.scalar_type() == at::kBFloat16) {
    round_all(value.const_data_ptr<float>(), key, leaf.data_ptr<c10::BFloat16>(), leaf.numel());
  } else {
    round_all(value.const_data_ptr<float>(), key, leaf.data_ptr<c10::Half>(), leaf.numel());
  }
}

void round_stochastically(at::Tensor value, const RoundingKey& key, at::Generator generator,
                          at::Tensor leaf) {
  const auto words = random::philox4x32({static_cast<uint32_t>(key.first), key.parameter, key.step,
                                         static_cast<uint32_t>(key.first >> 32)},
                                        philox_key(key));
  {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(uint64_t{words[1]} << 32 | words[0]);
  }
  if (leaf.scalar_type() == at::kBFloat16) {
    const at::Tensor is_finite = value.isfinite();
    at::Tensor bits = value.view(at::kInt);
    at::Tensor random = at::empty_like(bits).random_(0, 1 << 16, generator);
    random.mul_(is_finite).add_(bits).bitwise_and_(~0xffff);
    leaf.copy_(at::where(is_finite, random.view(at::kFloat), value));
  } else {
    leaf.copy_(at::where(value.isfinite(), half_places(value, generator), value));
  }
}

}  // namespace atelier::optim
