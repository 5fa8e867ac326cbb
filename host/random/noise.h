// Normal noise from a counter: every value is a function of (seed, sample, step) and of its place.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace atelier::random {

// Which noise. Equal keys give equal values, whatever the batch, the threads or the order of calls.
struct NoiseKey {
  uint64_t seed = 0;
  uint32_t sample = 0;
  uint32_t step = 0;
};

// Fills `out` with independent standard normal values. A longer span begins with a shorter one's
// values. At most 2^34 values.
void fill_normal(const NoiseKey& key, std::span<float> out);

// Returns float32 on the CPU, filled as by fill_normal in row-major order.
at::Tensor normal_noise(const NoiseKey& key, at::IntArrayRef shape);

}  // namespace atelier::random
