// Random numbers as a function of a counter: nothing is carried from one to the next, so that
// order, threads and restarts cannot change them.
#pragma once

#include <array>
#include <cstdint>

namespace atelier::random {

// Philox4x32-10 (Salmon et al. 2011): 128 random bits for a counter under a key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// What the numbers of one run are for. The values stand in saved runs: none is ever given a second
// meaning.
enum class Stream : uint32_t {
  kNoise = 1,
  kTimestep = 2,
  kOrder = 3,           // in which samples come
  kCaptionDropout = 4,  // which captions are left out
  kLayers = 5,          // dropout inside the model
  kInit = 6,            // first values of new weights
  kRounding = 7,        // stochastic rounding
  kValidation = 8,
  kFrames = 9,     // where pieces of clips begin, and which of them comes
  kDenoiser = 10,  // which of several a step is of
};

// A seed of its own for each stream of a run; streams of one seed are independent.
uint64_t stream_seed(uint64_t seed, Stream stream);

// Uniform in [0, 1), of 53 bits.
double uniform(uint64_t seed, uint32_t sample, uint32_t step);

// Uniform in 0 .. count - 1; count is at least 1.
uint64_t below(uint64_t count, uint64_t seed, uint32_t sample, uint32_t step);

}  // namespace atelier::random
