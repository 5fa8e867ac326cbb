// Sixteen bytes of a row, as one lane of a GPU reads, widens and writes them. nvcc and the host's
// compiler both compile this, so that the kernels can be played on the CPU.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#if defined(__CUDACC__)
#define ATELIER_LANE __host__ __device__ __forceinline__
#define ATELIER_UNROLL _Pragma("unroll")
#else
#define ATELIER_LANE inline
#define ATELIER_UNROLL
#endif

namespace atelier::ops::cuda {

// What rows are made of, in the order in which launchers number it.
enum class Element : int { kFloat32, kBFloat16, kFloat16 };

struct Float32 {
  using Bits = uint32_t;
};
struct BFloat16 {
  using Bits = uint16_t;
};
struct Float16 {
  using Bits = uint16_t;
};

template <typename T>
inline constexpr int kPackElements = 16 / sizeof(typename T::Bits);

struct alignas(16) Pack {
  uint32_t words[4];
};

ATELIER_LANE float as_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
#endif
}
ATELIER_LANE uint32_t as_bits(float v) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(v);
#else
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
#endif
}

// The host's conversions. A subnormal half is a difference of two floats of one exponent; others
// get their exponent by a product, which keeps infinity and NaN.
inline float wide_half(uint32_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  const float normal = as_float((magnitude << 13) + (0xe0u << 23)) * 0x1p-112f;
  const float subnormal = as_float(magnitude | (126u << 23)) - 0.5f;
  return as_float(sign | as_bits(magnitude < 0x400u ? subnormal : normal));
}
// The float adder rounds, at the bit where a half of this magnitude ends.
inline uint32_t narrow_half(float v) {
  const uint32_t bits = as_bits(v), twice = bits + bits;
  const float clipped = (as_float(bits & 0x7fffffffu) * 0x1p+112f) * 0x1p-110f;
  const uint32_t exponent = twice & 0xff000000u;
  const uint32_t bias = exponent < 0x71000000u ? 0x71000000u : exponent;
  const uint32_t sum = as_bits(as_float((bias >> 1) + 0x07800000u) + clipped);
  const uint32_t magnitude = ((sum >> 13) & 0x7c00u) + (sum & 0xfffu);
  return ((bits >> 16) & 0x8000u) | (twice > 0xff000000u ? 0x7e00u : magnitude);
}
inline uint32_t narrow_bfloat(float v) {
  const uint32_t bits = as_bits(v);
  return v != v ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

ATELIER_LANE void widen_pair(BFloat16, uint32_t word, float& low, float& high) {
  low = as_float(word << 16);
  high = as_float(word & 0xffff0000u);
}
ATELIER_LANE void widen_pair(Float16, uint32_t word, float& low, float& high) {
#if defined(__CUDA_ARCH__)
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(low), "=f"(high)
      : "r"(word));
#else
  low = wide_half(word & 0xffffu);
  high = wide_half(word >> 16);
#endif
}

// Rounded once, to the nearest, ties to even.
ATELIER_LANE uint32_t narrow_pair(BFloat16, float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return narrow_bfloat(low) | narrow_bfloat(high) << 16;
#endif
}
ATELIER_LANE uint32_t narrow_pair(Float16, float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  return narrow_half(low) | narrow_half(high) << 16;
#endif
}

// A GPU takes `Whole` in one access, whose address has to be a multiple of its bytes: elsewhere it
// ends the kernel with "misaligned address", and so does the host, where kernels are played.
template <typename Whole>
void require_aligned(const void* address) {
  static_assert(sizeof(Whole) == alignof(Whole));
  if (reinterpret_cast<uintptr_t>(address) % sizeof(Whole) != 0) {
    char message[96];
    std::snprintf(message, sizeof message, "misaligned address: %p is no multiple of %zu bytes",
                  address, sizeof(Whole));
    throw std::runtime_error(message);
  }
}
template <typename Whole>
ATELIER_LANE Whole load_whole(const void* from) {
#if defined(__CUDA_ARCH__)
  return *static_cast<const Whole*>(from);
#else
  require_aligned<Whole>(from);
  Whole whole;
  std::memcpy(&whole, from, sizeof whole);
  return whole;
#endif
}
template <typename Whole>
ATELIER_LANE void store_whole(void* to, const Whole& whole) {
#if defined(__CUDA_ARCH__)
  *static_cast<Whole*>(to) = whole;
#else
  require_aligned<Whole>(to);
  std::memcpy(to, &whole, sizeof whole);
#endif
}

template <typename T>
ATELIER_LANE void widen(const Pack& pack, float (&v)[kPackElements<T>]) {
  ATELIER_UNROLL
  for (int w = 0; w < 4; ++w) {
    if constexpr (kPackElements<T> == 4) {
      v[w] = as_float(pack.words[w]);
    } else {
      widen_pair(T(), pack.words[w], v[2 * w], v[2 * w + 1]);
    }
  }
}

template <typename T>
ATELIER_LANE Pack narrow(const float (&v)[kPackElements<T>]) {
  Pack pack;
  ATELIER_UNROLL
  for (int w = 0; w < 4; ++w) {
    if constexpr (kPackElements<T> == 4) {
      pack.words[w] = as_bits(v[w]);
    } else {
      pack.words[w] = narrow_pair(T(), v[2 * w], v[2 * w + 1]);
    }
  }
  return pack;
}

// Counts of elements may be negative, or more than a pack has, and are compared as they come: where
// such a number is first brought between 0 and 4 and then compared with 4, ptxas 13.0 takes the
// answer from its VIMNMX.RELU, which is wrong for 0, and a lane beyond the end reads 16 bytes.

// `count` elements from `from` on, zeros behind them. One load where all of it is `aligned`.
template <typename T>
ATELIER_LANE Pack load_pack(const void* from, int count, bool aligned) {
  using Bits = typename T::Bits;
  if (count >= kPackElements<T> && aligned) return load_whole<Pack>(from);
  Pack pack = {};
  const Bits* elements = static_cast<const Bits*>(from);
  constexpr int kPerWord = 4 / sizeof(Bits);
  ATELIER_UNROLL
  for (int i = 0; i < kPackElements<T>; ++i) {
    if (i < count)
      pack.words[i / kPerWord] |= uint32_t(elements[i]) << (i % kPerWord * 8 * int(sizeof(Bits)));
  }
  return pack;
}

template <typename T>
ATELIER_LANE void store_pack(void* to, const Pack& pack, int count, bool aligned) {
  using Bits = typename T::Bits;
  if (count >= kPackElements<T> && aligned) return store_whole(to, pack);
  Bits* elements = static_cast<Bits*>(to);
  constexpr int kPerWord = 4 / sizeof(Bits);
  ATELIER_UNROLL
  for (int i = 0; i < kPackElements<T>; ++i) {
    if (i < count)
      elements[i] = Bits(pack.words[i / kPerWord] >> (i % kPerWord * 8 * int(sizeof(Bits))));
  }
}

}  // namespace atelier::ops::cuda
