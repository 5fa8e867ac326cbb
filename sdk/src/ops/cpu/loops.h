// What the loops of operators over rows are written with.
//
// An operator's file for the CPU, such as swiglu_cpu.cpp, begins with a struct of its loops and is
// compiled several times: with ATELIER_INSTRUCTION_SET, the name of one, for the struct's table of
// this set, and without it for what makes pointers of tensors and calls loops from the best table.
//
// Pointers are to elements of the table's type, `sums` to its accumulation type (float, or double
// for double). Rows are dense; `n` of them, `width` elements each, one after another unless strides
// say otherwise. `sums` are added to and may be null where they are not wanted. Shifts, factors and
// gates are one row each, of the accumulation type.
//
// Loops include no other header: an inline function of a library, compiled with the flags of an
// instruction set, could be linked in everywhere.
#pragma once

#include <cstdint>

#ifdef ATELIER_INSTRUCTION_SET

#define ATELIER_SIMD _Pragma("omp simd")
#define ATELIER_SIMD_SUM(...) _Pragma(ATELIER_TEXT(omp simd reduction(+ : __VA_ARGS__)))
#define ATELIER_TEXT(...) #__VA_ARGS__

namespace atelier::ops::cpu {
namespace {

using Index = int64_t;

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

// Accum<T>: what sums and intermediate values of T are kept in.
template <typename T>
struct AccumOf {
  using type = float;
};
template <>
struct AccumOf<double> {
  using type = double;
};
template <typename T>
using Accum = typename AccumOf<T>::type;

inline float load(const float& v) {
  return v;
}
inline double load(const double& v) {
  return v;
}
inline float as_float(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
inline uint32_t as_bits(float v) {
  return __builtin_bit_cast(uint32_t, v);
}

inline float load(const BFloat16& v) {
  return as_float(static_cast<uint32_t>(v.bits) << 16);
}

// In integers, so that the loops are vectorised whatever the instruction set. The exponent is put
// right by a product, which keeps infinity and NaN; a subnormal value is a difference of two floats
// of one exponent.
inline float load(const Half& v) {
  const uint32_t sign = (v.bits & 0x8000u) << 16, magnitude = v.bits & 0x7fffu;
  const float normal = as_float((magnitude << 13) + (0xe0u << 23)) * 0x1p-112f;
  const float subnormal = as_float(magnitude | (126u << 23)) - 0.5f;
  return as_float(sign | as_bits(magnitude < 0x400u ? subnormal : normal));
}

inline void store(float& to, float v) {
  to = v;
}
inline void store(double& to, double v) {
  to = v;
}
// To the nearest, ties to even.
inline void store(BFloat16& to, float v) {
  const uint32_t bits = as_bits(v);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<uint16_t>(v != v ? 0x7fc0u : rounded);
}
// Stores so: the float adder rounds, at the bit where a half of this magnitude ends.
inline void store(Half& to, float v) {
  const uint32_t bits = as_bits(v), twice = bits + bits;
  const float clipped = (as_float(bits & 0x7fffffffu) * 0x1p+112f) * 0x1p-110f;
  const uint32_t exponent = twice & 0xff000000u;
  const uint32_t bias = exponent < 0x71000000u ? 0x71000000u : exponent;
  const uint32_t sum = as_bits(as_float((bias >> 1) + 0x07800000u) + clipped);
  const uint32_t magnitude = ((sum >> 13) & 0x7c00u) + (sum & 0xfffu);
  to.bits =
      static_cast<uint16_t>(((bits >> 16) & 0x8000u) | (twice > 0xff000000u ? 0x7e00u : magnitude));
}

template <typename T>
inline Accum<T> rounded(Accum<T> v) {
  T stored;
  store(stored, v);
  return load(stored);
}

inline float square_root(float v) {
  return __builtin_sqrtf(v);
}
inline double square_root(double v) {
  return __builtin_sqrt(v);
}

// Within 2 units in the last place up to e^88, then infinite; NaN stays NaN.
inline float exponential(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -87.0f ? -87.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504088896341f + magic;
  const float whole = shifted - magic;
  const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t exponent = static_cast<int32_t>(as_bits(shifted)) - 0x4b400000 + 127;
  return p * as_float(static_cast<uint32_t>(exponent) << 23);
}
inline double exponential(double x) {
  return __builtin_exp(x);
}

template <typename A>
inline A sigmoid(A x) {
  return A(1) / (A(1) + exponential(-x));
}

// 1 / sqrt(mean of squares + eps)
template <typename T>
inline Accum<T> inverse_rms(const T* x, Index width, double eps) {
  using A = Accum<T>;
  A squares = 0;
  ATELIER_SIMD_SUM(squares)
  for (Index i = 0; i < width; ++i) {
    const A v = load(x[i]);
    squares += v * v;
  }
  return A(1) / square_root(squares / A(width) + A(eps));
}

}  // namespace
}  // namespace atelier::ops::cpu

#endif
