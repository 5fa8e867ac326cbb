// One value as a code of 8 bits, and a lane's codes of a pack of values.
#pragma once

#include <cfloat>
#include <cmath>

#include "ops/cuda/row_grid.h"

namespace atelier::ops::cuda {

// The larger of two values; NaN where one of them is.
ATELIER_LANE float larger(float a, float b) {
  return a > b || a != a ? a : b;
}

// The largest of the first `count`, and of what was the largest before.
template <typename T>
ATELIER_LANE float largest_of(const float (&v)[kPackElements<T>], float largest, int count) {
  ATELIER_UNROLL
  for (int i = 0; i < kPackElements<T>; ++i)
    largest = i < count ? larger(largest, fabsf(v[i])) : largest;
  return largest;
}

// The scale for the largest value of a row; a row of zeros keeps a scale that can be divided by.
ATELIER_LANE float scale_of(float largest, bool is_int8) {
  const float scale = largest / (is_int8 ? 127.0f : 448.0f);
  return scale < FLT_MIN ? FLT_MIN : scale;
}

// e4m3, rounded to the nearest, ties to even; v in [-448, 448] or NaN.
ATELIER_LANE uint32_t e4m3_of(float v) {
  const uint32_t sign = as_bits(v) >> 24 & 0x80u, magnitude = as_bits(v) & 0x7fffffffu;
  if (v != v) return sign | 0x7fu;
  if (magnitude < 121u << 23) {  // below 2^-6: the float adder rounds at multiples of 2^-9
    return sign | (as_bits(as_float(magnitude) + 16384.0f) - as_bits(16384.0f));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return sign | (rounded - (120u << 23)) >> 20;
}

// What many values are divided by. Both are multiplied by a power of two first, which leaves the
// quotient as it is: products with the inverse would leave a float's range otherwise.
struct Divisor {
  float value, inverse, power;
};
ATELIER_LANE Divisor divisor(float value) {
  const float power = value < 0x1p-90f ? 0x1p96f : value < 0x1p120f ? 1.0f : 0x1p-96f;
  // All that is finite is nothing of an infinite one.
  if (value > FLT_MAX) return {FLT_MAX, 0.0f, power};
  return {value * power, 1.0f / (value * power), power};
}

// v divided by it in five operations: a product with the rounded inverse, corrected by its
// remainder (Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", 1990). Rounded as a division is, but where that lies within 2^-21 of a last digit
// from halfway between two floats.
ATELIER_LANE float quotient(float v, const Divisor& by) {
  const float moved = v * by.power, q = moved * by.inverse;
  return copysignf(fmaf(fmaf(-q, by.value, moved), by.inverse, q), v);  // zeros keep their sign
}

// A code of int8 or e4m3.
ATELIER_LANE uint32_t code_of(float v, const Divisor& scale, bool is_int8) {
  const float limit = is_int8 ? 127.0f : 448.0f;
  float scaled = quotient(v, scale);
  if (is_int8) scaled = rintf(scaled);
  scaled = scaled > limit ? limit : scaled < -limit ? -limit : scaled;
  if (!is_int8) return e4m3_of(scaled);
  return scaled != scaled ? 0u : uint32_t(int32_t(scaled)) & 0xffu;
}

ATELIER_LANE float value_of(uint32_t code, bool is_int8) {
  if (is_int8) return float(int32_t(code << 24) >> 24);
  const uint32_t magnitude = code & 0x7fu;
  const uint32_t bits =
      magnitude == 0x7fu ? 0x7fc00000u : as_bits(as_float(magnitude << 20) * 0x1p120f);
  return as_float(bits | (code & 0x80u) << 24);
}

// As many codes as a pack has elements.
template <typename T>
struct alignas(kPackElements<T>) Codes {
  uint32_t words[kPackElements<T> / 4];
};

template <typename T>
ATELIER_LANE void put_codes(const Output& out, const Place& place, int pack,
                            const Codes<T>& codes) {
  uint8_t* to = static_cast<uint8_t*>(out.data) + place.row * out.stride + place.column_of(pack);
  const int count = place.count<T>(pack);
  if (count == kPackElements<T> && out.is_aligned) return store_whole(to, codes);
  ATELIER_UNROLL
  for (int i = 0; i < kPackElements<T>; ++i) {
    if (i < count) to[i] = uint8_t(codes.words[i / 4] >> (i % 4 * 8));
  }
}

template <typename T>
ATELIER_LANE void store_codes(const RowArguments& a, const Place& place, int pack,
                              const float (&v)[kPackElements<T>], float scale) {
  const Divisor by = divisor(scale);
  Codes<T> codes = {};
  ATELIER_UNROLL
  for (int i = 0; i < kPackElements<T>; ++i)
    codes.words[i / 4] |= code_of(v[i], by, a.is_int8) << (i % 4 * 8);
  put_codes<T>(a.codes, place, pack, codes);
}

template <typename T>
ATELIER_LANE Codes<T> load_codes(const Input& from, const Place& place, int pack) {
  const uint8_t* codes =
      static_cast<const uint8_t*>(from.data) + place.row * from.stride + place.column_of(pack);
  const int count = place.count<T>(pack);
  if (count == kPackElements<T> && from.is_aligned) return load_whole<Codes<T>>(codes);
  Codes<T> result = {};
  ATELIER_UNROLL
  for (int i = 0; i < kPackElements<T>; ++i) {
    if (i < count) result.words[i / 4] |= uint32_t(codes[i]) << (i % 4 * 8);
  }
  return result;
}

// By the first lane of the row.
ATELIER_LANE void store_scale(const RowArguments& a, const Place& place, float scale) {
  if (place.is_active && place.column == 0) a.new_scales[place.row] = scale;
}

}  // namespace atelier::ops::cuda
