// Stochastic rounding: up or down at random, so that the mean is the value.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace atelier::optim {

// Which random bits. Equal keys give equal ones.
struct RoundingKey {
  uint64_t seed = 0;  // of random::Stream::kRounding
  uint32_t parameter = 0;
  uint32_t step = 0;
  uint64_t first = 0;  // the place of the first value in its parameter: a multiple of 8
};

// The seed as Philox takes it.
std::array<uint32_t, 2> philox_key(const RoundingKey& key);

// Writes `value`, contiguous float32 on the CPU, rounded to `leaf`, contiguous bfloat16 or float16.
// Bits are Philox's, so they depend on the key and the place alone. What `leaf` can represent stays
// as it is; what is not finite, too.
void round_stochastically(const at::Tensor& value, const RoundingKey& key, at::Tensor leaf);

// Rounds so on any device, with operators of LibTorch. `generator` is one of that device and is
// seeded from the key: its bits are others than those above. `value` is overwritten.
void round_stochastically(at::Tensor value, const RoundingKey& key, at::Generator generator,
                          at::Tensor leaf);

}  // namespace atelier::optim
