#include "host/random/counter.h"

namespace atelier::random {
namespace {

std::array<uint32_t, 2> key_of(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

uint64_t bits(uint64_t seed, uint32_t sample, uint32_t step) {
  const auto words = philox4x32({0, sample, step, 1}, key_of(seed));
  return uint64_t{words[1]} << 32 | words[0];
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

uint64_t stream_seed(uint64_t seed, Stream stream) {
  const auto words = philox4x32({0, 0, static_cast<uint32_t>(stream), 2}, key_of(seed));
  return uint64_t{words[1]} << 32 | words[0];
}

double uniform(uint64_t seed, uint32_t sample, uint32_t step) {
  return static_cast<double>(bits(seed, sample, step) >> 11) * 0x1p-53;
}

uint64_t below(uint64_t count, uint64_t seed, uint32_t sample, uint32_t step) {
  const auto product = static_cast<unsigned __int128>(bits(seed, sample, step)) * count;
  return static_cast<uint64_t>(product >> 64);
}

}  // namespace atelier::random
