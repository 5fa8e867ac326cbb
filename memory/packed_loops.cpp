// Compiled for each instruction set, whose name is ATELIER_INSTRUCTION_SET, with products and sums
// that are rounded each by itself. Includes no header with inline functions of a library: compiled
// with the flags of an instruction set, one could be linked in everywhere.
#include "memory/packed_loops.h"

#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

namespace atelier::memory {
namespace {

using Index = int64_t;

#define ATELIER_SIMD _Pragma("omp simd")

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

inline float as_float(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
inline uint32_t as_bits(float v) {
  return __builtin_bit_cast(uint32_t, v);
}

#if defined(__AVX512BW__)
// The float16 in two bytes.
inline float half_at(const uint8_t* in) {
  return _cvtsh_ss(static_cast<uint16_t>(in[0] | in[1] << 8));
}
#else
// The float16 in two bytes. The exponent is put right by a product, which keeps infinity and NaN; a
// subnormal value is a difference of two floats of one exponent.
inline float half_at(const uint8_t* in) {
  const uint32_t bits = in[0] | static_cast<uint32_t>(in[1]) << 8;
  const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  const float normal = as_float((magnitude << 13) + (0xe0u << 23)) * 0x1p-112f;
  const float subnormal = as_float(magnitude | (126u << 23)) - 0.5f;
  return as_float(sign | as_bits(magnitude < 0x400u ? subnormal : normal));
}
#endif

inline void store(float& to, float v) {
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

// What a block is: value i is scales[i / kGroup] * codes[i] - offsets[i / kGroup]. `offsets` are
// not asked for where a packing has none.
template <Index values, Index bytes, Index group, bool has_offsets>
struct Block {
  static constexpr Index kValues = values, kBytes = bytes, kGroup = group;
  static constexpr bool kHasOffsets = has_offsets;
};

// 32 codes: the low halves of 16 bytes, then the high ones.
inline void take_halves(const uint8_t* in, int8_t* codes, int subtracted) {
  ATELIER_SIMD
  for (Index i = 0; i < 16; ++i) {
    codes[i] = static_cast<int8_t>((in[i] & 15) - subtracted);
    codes[16 + i] = static_cast<int8_t>((in[i] >> 4) - subtracted);
  }
}

struct Q4_0 : Block<32, 18, 32, false> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float*) {
    scales[0] = half_at(in);
    take_halves(in + 2, codes, 8);
  }
};
struct Q4_1 : Block<32, 20, 32, true> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float* offsets) {
    scales[0] = half_at(in);
    offsets[0] = -half_at(in + 2);
    take_halves(in + 4, codes, 0);
  }
};

// Bit i of `in` is bit 4 of code i.
inline void add_fifth_bits(const uint8_t* in, int8_t* codes, int subtracted) {
  const uint32_t high = in[0] | static_cast<uint32_t>(in[1]) << 8 |
                        static_cast<uint32_t>(in[2]) << 16 | static_cast<uint32_t>(in[3]) << 24;
  ATELIER_SIMD
  for (Index i = 0; i < 32; ++i)
    codes[i] = static_cast<int8_t>((codes[i] | ((high >> i) & 1) << 4) - subtracted);
}
struct Q5_0 : Block<32, 22, 32, false> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float*) {
    scales[0] = half_at(in);
    take_halves(in + 6, codes, 0);
    add_fifth_bits(in + 2, codes, 16);
  }
};
struct Q5_1 : Block<32, 24, 32, true> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float* offsets) {
    scales[0] = half_at(in);
    offsets[0] = -half_at(in + 2);
    take_halves(in + 8, codes, 0);
    add_fifth_bits(in + 4, codes, 0);
  }
};
struct Q8_0 : Block<32, 34, 32, false> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float*) {
    scales[0] = half_at(in);
    ATELIER_SIMD
    for (Index i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(in[2 + i]);
  }
};

// 128 codes of 2 bits in 32 bytes: the lowest two bits of all, then the next ones.
inline void take_quarters(const uint8_t* in, int8_t* codes) {
  for (Index part = 0; part < 4; ++part) {
    ATELIER_SIMD
    for (Index i = 0; i < 32; ++i)
      codes[32 * part + i] = static_cast<int8_t>((in[i] >> (2 * part)) & 3);
  }
}
struct Q2_K : Block<256, 84, 16, true> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float* offsets) {
    const float scale = half_at(in + 80), offset = half_at(in + 82);
    for (Index i = 0; i < 16; ++i) {
      scales[i] = scale * static_cast<float>(in[i] & 15);
      offsets[i] = offset * static_cast<float>(in[i] >> 4);
    }
    take_quarters(in + 16, codes);
    take_quarters(in + 48, codes + 128);
  }
};
struct Q3_K : Block<256, 110, 16, false> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float*) {
    const float scale = half_at(in + 108);
    const uint8_t* packed = in + 96;  // 16 scales: 4 low bits in 8 bytes, 2 high bits in 4
    for (Index i = 0; i < 16; ++i) {
      const int low = (packed[i % 8] >> (4 * (i / 8))) & 15;
      const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
      scales[i] = scale * static_cast<float>((low | high << 4) - 32);
    }
    take_quarters(in + 32, codes);
    take_quarters(in + 64, codes + 128);
    for (Index part = 0; part < 8; ++part) {  // where a bit is not set, 4 is taken away
      ATELIER_SIMD
      for (Index i = 0; i < 32; ++i)
        codes[32 * part + i] =
            static_cast<int8_t>(codes[32 * part + i] - ((~(in[i] >> part) & 1) << 2));
    }
  }
};

// 8 scales and 8 offsets of 6 bits in 12 bytes.
inline void take_six_bits(const uint8_t* in, float scale, float offset, float* scales,
                          float* offsets) {
  for (Index i = 0; i < 4; ++i) {
    scales[i] = scale * static_cast<float>(in[i] & 63);
    offsets[i] = offset * static_cast<float>(in[4 + i] & 63);
    scales[4 + i] = scale * static_cast<float>((in[8 + i] & 15) | ((in[i] >> 2) & 48));
    offsets[4 + i] = offset * static_cast<float>((in[8 + i] >> 4) | ((in[4 + i] >> 2) & 48));
  }
}
// 64 codes: the low halves of 32 bytes, then the high ones.
inline void take_long_halves(const uint8_t* in, int8_t* codes) {
  ATELIER_SIMD
  for (Index i = 0; i < 32; ++i) {
    codes[i] = static_cast<int8_t>(in[i] & 15);
    codes[32 + i] = static_cast<int8_t>(in[i] >> 4);
  }
}
struct Q4_K : Block<256, 144, 32, true> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float* offsets) {
    take_six_bits(in + 4, half_at(in), half_at(in + 2), scales, offsets);
    for (Index part = 0; part < 4; ++part) take_long_halves(in + 16 + 32 * part, codes + 64 * part);
  }
};
struct Q5_K : Block<256, 176, 32, true> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float* offsets) {
    take_six_bits(in + 4, half_at(in), half_at(in + 2), scales, offsets);
    const uint8_t* high = in + 16;
    for (Index part = 0; part < 4; ++part) take_long_halves(in + 48 + 32 * part, codes + 64 * part);
    for (Index part = 0; part < 8; ++part) {
      ATELIER_SIMD
      for (Index i = 0; i < 32; ++i)
        codes[32 * part + i] =
            static_cast<int8_t>(codes[32 * part + i] | ((high[i] >> part) & 1) << 4);
    }
  }
};
struct Q6_K : Block<256, 210, 16, false> {
  static void unpack(const uint8_t* in, int8_t* codes, float* scales, float*) {
    const float scale = half_at(in + 208);
    for (Index i = 0; i < 16; ++i)
      scales[i] = scale * static_cast<float>(static_cast<int8_t>(in[192 + i]));
    for (Index half = 0; half < 2; ++half) {
      const uint8_t *low = in + 64 * half, *high = in + 128 + 32 * half;
      int8_t* out = codes + 128 * half;
      ATELIER_SIMD
      for (Index i = 0; i < 32; ++i) {
        out[i] = static_cast<int8_t>(((low[i] & 15) | (high[i] & 3) << 4) - 32);
        out[32 + i] = static_cast<int8_t>(((low[32 + i] & 15) | (high[i] & 12) << 2) - 32);
        out[64 + i] = static_cast<int8_t>(((low[i] >> 4) | (high[i] & 48)) - 32);
        out[96 + i] = static_cast<int8_t>(((low[32 + i] >> 4) | (high[i] & 192) >> 2) - 32);
      }
    }
  }
};

#if defined(__AVX512BW__)
// The codes in 16 bytes, in order.
inline __m256i codes_of(const uint8_t* codes) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), mask);
  const __m128i low = _mm_and_si128(packed, mask);
  return _mm256_set_m128i(_mm_unpackhi_epi8(high, low), _mm_unpacklo_epi8(high, low));
}
// 32 values of a table at these codes, which are below `size`, 16 or 32.
template <Index size, typename T>
inline void look_up_codes(__m256i codes, const T* table, T* out) {
  static_assert(sizeof(T) == 2);
  const __m512i values =
      size == 16
          ? _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(table)))
          : _mm512_loadu_si512(table);
  const __m512i index = _mm512_cvtepu8_epi16(codes);
  _mm512_storeu_si512(out, _mm512_permutexvar_epi16(index, values));
}
template <Index size>
inline void look_up_codes(__m256i codes, const float* table, float* out) {
  const __m512 low = _mm512_loadu_ps(table);
  for (Index half = 0; half < 2; ++half) {
    const __m128i own =
        half == 0 ? _mm256_castsi256_si128(codes) : _mm256_extracti128_si256(codes, 1);
    const __m512i index = _mm512_maskz_cvtepu8_epi32(0xffff, own);
    const __m512 values =
        size == 16 ? _mm512_maskz_permutexvar_ps(0xffff, index, low)
                   : _mm512_permutex2var_ps(low, index, _mm512_loadu_ps(table + size - 16));
    _mm512_storeu_ps(out + 16 * half, values);
  }
}
template <typename T>
inline void look_up(const uint8_t* codes, const T* table, T* out) {
  look_up_codes<16>(codes_of(codes), table, out);
}
#else
// 32 values of a table of 16 at the codes in 16 bytes.
template <typename T>
inline void look_up(const uint8_t* codes, const T* table, T* out) {
  for (Index i = 0; i < 16; ++i) {
    out[2 * i] = table[codes[i] >> 4];
    out[2 * i + 1] = table[codes[i] & 15];
  }
}
#endif

#if defined(__AVX512BW__)
inline void store(float* to, __m512 v) {
  _mm512_storeu_ps(to, v);
}
inline void store(BFloat16* to, __m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd =
      _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_mov_epi32(_mm512_maskz_srli_epi32(0xffff, sum, 16), is_nan,
                                                _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi32_epi16(0xffff, rounded));
}
inline void store(Half* to, __m512 v) {
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(to),
      _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// kGroup values: scale * codes[i] - offset.
template <typename Kind, typename T>
inline void put_group(const int8_t* codes, float scale, float offset, T* out) {
  for (Index i = 0; i < Kind::kGroup; i += 16) {
    const __m128i own = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    const __m512 value =
        _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, own)),
                      _mm512_set1_ps(scale));
    store(out + i, Kind::kHasOffsets ? _mm512_sub_ps(value, _mm512_set1_ps(offset)) : value);
  }
}
#else
// kGroup values: scale * codes[i] - offset.
template <typename Kind, typename T>
inline void put_group(const int8_t* codes, float scale, float offset, T* out) {
  ATELIER_SIMD
  for (Index i = 0; i < Kind::kGroup; ++i) {
    const float value = scale * static_cast<float>(codes[i]);
    store(out[i], Kind::kHasOffsets ? value - offset : value);
  }
}
#endif

template <typename Kind, typename T>
inline void unpack_block(const uint8_t* in, T* out) {
  constexpr Index kGroups = Kind::kValues / Kind::kGroup;
  alignas(64) int8_t codes[Kind::kValues];
  float scales[kGroups], offsets[kGroups] = {};
  Kind::unpack(in, codes, scales, offsets);
  for (Index group = 0; group < kGroups; ++group)
    put_group<Kind>(codes + group * Kind::kGroup, scales[group], offsets[group],
                    out + group * Kind::kGroup);
}

#if defined(__AVX512BW__)
// 32 codes that stand in a block as 16 bytes of two each: the low halves first.
inline __m256i halves_at(const uint8_t* in) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
  const __m128i mask = _mm_set1_epi8(15);
  return _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(packed, 4), mask),
                          _mm_and_si128(packed, mask));
}
// Group number `group` of codes in runs of 32 bytes, each with the low halves first.
inline __m256i long_half_at(const uint8_t* in, Index group) {
  const __m256i packed =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 32 * (group / 2)));
  const __m256i shifted = group % 2 == 0 ? packed : _mm256_srli_epi16(packed, 4);
  return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
}
inline __m256i with_fifth_bits(__m256i codes, __mmask32 bits) {
  return _mm256_or_si256(codes, _mm256_maskz_set1_epi8(bits, 16));
}
inline __mmask32 mask_at(const uint8_t* in) {
  return in[0] | static_cast<uint32_t>(in[1]) << 8 | static_cast<uint32_t>(in[2]) << 16 |
         static_cast<uint32_t>(in[3]) << 24;
}

// Kinds whose groups are 32 codes of at most 5 bits: how many values there are, what is taken away
// from codes, and the codes of a group.
template <typename Kind>
struct Table {
  static constexpr Index kSize = 0;
};
template <>
struct Table<Q4_0> {
  static constexpr Index kSize = 16, kSubtracted = 8;
  static __m256i codes(const uint8_t* in, Index) { return halves_at(in + 2); }
};
template <>
struct Table<Q4_1> {
  static constexpr Index kSize = 16, kSubtracted = 0;
  static __m256i codes(const uint8_t* in, Index) { return halves_at(in + 4); }
};
template <>
struct Table<Q5_0> {
  static constexpr Index kSize = 32, kSubtracted = 16;
  static __m256i codes(const uint8_t* in, Index) {
    return with_fifth_bits(halves_at(in + 6), mask_at(in + 2));
  }
};
template <>
struct Table<Q5_1> {
  static constexpr Index kSize = 32, kSubtracted = 0;
  static __m256i codes(const uint8_t* in, Index) {
    return with_fifth_bits(halves_at(in + 8), mask_at(in + 4));
  }
};
template <>
struct Table<Q4_K> {
  static constexpr Index kSize = 16, kSubtracted = 0;
  static __m256i codes(const uint8_t* in, Index group) { return long_half_at(in + 16, group); }
};
template <>
struct Table<Q5_K> {
  static constexpr Index kSize = 32, kSubtracted = 0;
  static __m256i codes(const uint8_t* in, Index group) {
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + 16));
    const __mmask32 bits =
        _mm256_test_epi8_mask(high, _mm256_set1_epi8(static_cast<char>(1 << group)));
    return with_fifth_bits(long_half_at(in + 48, group), bits);
  }
};

// Scales and offsets of a block.
template <typename Kind>
inline void take_scales(const uint8_t* in, float* scales, float* offsets) {
  if constexpr (Kind::kValues == 256) {
    take_six_bits(in + 4, half_at(in), half_at(in + 2), scales, offsets);
  } else {
    scales[0] = half_at(in);
    if constexpr (Kind::kHasOffsets) offsets[0] = -half_at(in + 2);
  }
}

// Every group has a table of its values.
template <typename Kind, typename T>
inline void unpack_block_by_table(const uint8_t* in, T* out) {
  using Own = Table<Kind>;
  constexpr Index kGroups = Kind::kValues / 32;
  float scales[kGroups], offsets[kGroups] = {};
  take_scales<Kind>(in, scales, offsets);
  for (Index group = 0; group < kGroups; ++group, out += 32) {
    alignas(64) T table[Own::kSize];
    const float scale = scales[group], offset = offsets[group];
    ATELIER_SIMD
    for (Index i = 0; i < Own::kSize; ++i) {
      const float value = scale * static_cast<float>(i - Own::kSubtracted);
      store(table[i], Kind::kHasOffsets ? value - offset : value);
    }
    look_up_codes<Own::kSize>(Own::codes(in, group), table, out);
  }
}
#endif

// Codes are read once, from memory; the processor itself looks no further than the end of a page.
inline void fetch(const uint8_t* block, Index bytes) {
  for (Index i = 0; i < bytes; i += 64) __builtin_prefetch(block + i);
}

template <typename Kind, typename T>
void unpack_blocks(const uint8_t* in, Index count, Index ahead, void* out_) {
  T* out = static_cast<T*>(out_);
  for (Index block = 0; block < count; ++block, in += Kind::kBytes, out += Kind::kValues) {
    fetch(in + ahead * Kind::kBytes, Kind::kBytes);
#if defined(__AVX512BW__)
    if constexpr (Table<Kind>::kSize > 0) {
      unpack_block_by_table<Kind>(in, out);
      continue;
    }
#endif
    unpack_block<Kind>(in, out);
  }
}

// Each block has a table of its 16 values.
template <typename T>
void unpack_four_bit(const uint8_t* codes, const float* values, const float* scales, Index block,
                     Index count, Index ahead, void* out_) {
  T* out = static_cast<T*>(out_);
  alignas(64) T table[16];
  for (Index begin = 0; begin < count; begin += block, ++scales) {
    const float scale = *scales;
    fetch(codes + ahead * (block / 2), block / 2);
    __builtin_prefetch(scales + ahead);
    ATELIER_SIMD
    for (Index i = 0; i < 16; ++i) store(table[i], values[i] * scale);
    for (Index i = 0; i < block; i += 32, codes += 16, out += 32) look_up(codes, table, out);
  }
}

void unpack_scales(const uint8_t* codes, const float* values, const float* scales, Index block,
                   float offset, Index count, float* out) {
  for (Index begin = 0; begin < count; begin += block) {
    const float scale = *scales++;
    const Index end = begin + block < count ? begin + block : count;
    for (Index i = begin; i < end; ++i) out[i] = values[codes[i]] * scale + offset;
  }
}

template <typename T>
constexpr PackedLoops kLoops = {
    .blocks = {unpack_blocks<Q4_0, T>, unpack_blocks<Q4_1, T>, unpack_blocks<Q5_0, T>,
               unpack_blocks<Q5_1, T>, unpack_blocks<Q8_0, T>, unpack_blocks<Q2_K, T>,
               unpack_blocks<Q3_K, T>, unpack_blocks<Q4_K, T>, unpack_blocks<Q5_K, T>,
               unpack_blocks<Q6_K, T>},
    .four_bit = unpack_four_bit<T>,
    .scales = unpack_scales};

}  // namespace

constinit const PackedLoops PackedLoops::ATELIER_INSTRUCTION_SET[] = {
    kLoops<float>, kLoops<BFloat16>, kLoops<Half>};

}  // namespace atelier::memory
