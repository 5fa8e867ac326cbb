// Weights that rest as blocks of small codes, as numbers. All of them are one row, and a pack of it
// never leaves the values that share a scale. Operations round as LibTorch's do, each by itself.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

// --- bytes, which begin at even addresses ---

ATELIER_LANE uint32_t two_bytes(const uint8_t* at) {
  return load_whole<uint16_t>(at);
}
ATELIER_LANE uint32_t four_bytes(const uint8_t* at) {
  return two_bytes(at) | two_bytes(at + 2) << 16;
}
ATELIER_LANE float half_at(const uint8_t* at) {
  float low, high;
  widen_pair(Float16(), two_bytes(at), low, high);
  return low;
}

// --- four codes from number i on, a multiple of 4, each in a byte ---

// The low halves of `kBytes` bytes, then the high ones, over and over.
template <int kBytes>
ATELIER_LANE uint32_t half_bytes(const uint8_t* at, int i) {
  const int run = i / kBytes;
  return four_bytes(at + run / 2 * kBytes + i % kBytes) >> (run % 2 * 4) & 0x0f0f0f0fu;
}
// The lowest two bits of 32 bytes, then the next ones, over and over.
ATELIER_LANE uint32_t quarter_bytes(const uint8_t* at, int i) {
  return four_bytes(at + i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2) & 0x03030303u;
}
// The lowest bit of 32 bytes, then the next ones.
ATELIER_LANE uint32_t bits_of_bytes(const uint8_t* at, int i) {
  return four_bytes(at + i % 32) >> (i / 32) & 0x01010101u;
}
// Bits i to i + 3 of four bytes: a product puts each of them at the end of a byte.
ATELIER_LANE uint32_t spread_bits(const uint8_t* at, int i) {
  return (four_bytes(at) >> i & 15u) * 0x00204081u & 0x01010101u;
}

// The number of a code from which `kZero` is taken: a float that has the code as its last bits,
// less what it is otherwise, which is exact.
template <int kZero>
ATELIER_LANE float number_of(uint32_t code) {
  return as_float(0x4b000000u | code) - (0x1p23f + float(kZero));
}

// --- blocks of GGUF: value i is group(i).scale * (code i - kZero) - group(i).offset ---

struct Group {
  float scale, offset;
};

template <int values, int bytes, int zero>
struct GgufBlock {
  static constexpr int kValues = values, kBytes = bytes, kZero = zero;
};

struct BlockQ4_0 : GgufBlock<32, 18, 8> {
  static ATELIER_LANE Group group(const uint8_t* block, int) { return {half_at(block), 0.0f}; }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return half_bytes<16>(block + 2, i);
  }
};
struct BlockQ4_1 : GgufBlock<32, 20, 0> {
  static ATELIER_LANE Group group(const uint8_t* block, int) {
    return {half_at(block), -half_at(block + 2)};
  }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return half_bytes<16>(block + 4, i);
  }
};
struct BlockQ5_0 : GgufBlock<32, 22, 16> {
  static ATELIER_LANE Group group(const uint8_t* block, int) { return {half_at(block), 0.0f}; }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return half_bytes<16>(block + 6, i) | spread_bits(block + 2, i) << 4;
  }
};
struct BlockQ5_1 : GgufBlock<32, 24, 0> {
  static ATELIER_LANE Group group(const uint8_t* block, int) {
    return {half_at(block), -half_at(block + 2)};
  }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return half_bytes<16>(block + 8, i) | spread_bits(block + 4, i) << 4;
  }
};
struct BlockQ8_0 : GgufBlock<32, 34, 128> {
  static ATELIER_LANE Group group(const uint8_t* block, int) { return {half_at(block), 0.0f}; }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return four_bytes(block + 2 + i) ^ 0x80808080u;  // int8, 128 higher
  }
};

struct BlockQ2_K : GgufBlock<256, 84, 0> {
  static ATELIER_LANE Group group(const uint8_t* block, int i) {
    const uint32_t both = block[i / 16];
    return {half_at(block + 80) * float(both & 15u), half_at(block + 82) * float(both >> 4)};
  }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return quarter_bytes(block + 16, i);
  }
};
struct BlockQ3_K : GgufBlock<256, 110, 4> {
  // 16 scales: 4 low bits in 8 bytes, 2 high bits in 4.
  static ATELIER_LANE Group group(const uint8_t* block, int i) {
    const int g = i / 16;
    const int low = block[96 + g % 8] >> (g / 8 * 4) & 15;
    const int high = block[104 + g % 4] >> (g / 4 * 2) & 3;
    return {half_at(block + 108) * float((low | high << 4) - 32), 0.0f};
  }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return quarter_bytes(block + 32, i) | bits_of_bytes(block, i) << 2;
  }
};

// Number g of 8 scales and 8 offsets of 6 bits in 12 bytes, behind what all are multiplied by.
ATELIER_LANE Group group_of_six_bits(const uint8_t* block, int g) {
  const uint8_t* bytes = block + 4;
  uint32_t scale = bytes[g % 4], offset = bytes[4 + g % 4];
  if (g < 4) {
    scale &= 63u, offset &= 63u;
  } else {
    const uint32_t low = bytes[4 + g];
    scale = (scale >> 2 & 48u) | (low & 15u), offset = (offset >> 2 & 48u) | low >> 4;
  }
  return {half_at(block) * float(scale), half_at(block + 2) * float(offset)};
}
struct BlockQ4_K : GgufBlock<256, 144, 0> {
  static ATELIER_LANE Group group(const uint8_t* block, int i) {
    return group_of_six_bits(block, i / 32);
  }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return half_bytes<32>(block + 16, i);
  }
};
struct BlockQ5_K : GgufBlock<256, 176, 0> {
  static ATELIER_LANE Group group(const uint8_t* block, int i) {
    return group_of_six_bits(block, i / 32);
  }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return half_bytes<32>(block + 48, i) | bits_of_bytes(block + 16, i) << 4;
  }
};
struct BlockQ6_K : GgufBlock<256, 210, 32> {
  static ATELIER_LANE Group group(const uint8_t* block, int i) {
    return {half_at(block + 208) * float(int8_t(block[192 + i / 16])), 0.0f};
  }
  static ATELIER_LANE uint32_t codes(const uint8_t* block, int i) {
    return half_bytes<64>(block, i) | quarter_bytes(block + 128, i) << 4;
  }
};

// --- the kernel ---

template <typename T>
struct DrawPacked : PlainFunctor<T, 4> {
  using Base = PlainFunctor<T, 4>;
  using typename Base::Packs;
  static constexpr int kElements = Base::kElements;

  // Nothing is written before all is read: what is read may then be under way at once.
  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& place, NoLane&, ColumnSums&,
                                 float (&)[kMostSums]) {
    Packs values;
    draw(a.packed, place, values);
    Base::for_packs([&](int p) { store_row<T>(a.out, place, p, values[p]); });
  }

 private:
  static ATELIER_LANE void draw(const PackedArguments& packed, const Place& place, Packs& values) {
    switch (packed.packing) {
      case Packing::kQ4_0:
        return draw_blocks<BlockQ4_0>(packed, place, values);
      case Packing::kQ4_1:
        return draw_blocks<BlockQ4_1>(packed, place, values);
      case Packing::kQ5_0:
        return draw_blocks<BlockQ5_0>(packed, place, values);
      case Packing::kQ5_1:
        return draw_blocks<BlockQ5_1>(packed, place, values);
      case Packing::kQ8_0:
        return draw_blocks<BlockQ8_0>(packed, place, values);
      case Packing::kQ2_K:
        return draw_blocks<BlockQ2_K>(packed, place, values);
      case Packing::kQ3_K:
        return draw_blocks<BlockQ3_K>(packed, place, values);
      case Packing::kQ4_K:
        return draw_blocks<BlockQ4_K>(packed, place, values);
      case Packing::kQ5_K:
        return draw_blocks<BlockQ5_K>(packed, place, values);
      case Packing::kQ6_K:
        return draw_blocks<BlockQ6_K>(packed, place, values);
      default:
        return draw_four_bit(packed, place, values);
    }
  }

  // A pack is whole, or not there: rows are whole blocks. In the place of one that is not there the
  // lane's first is read, or the first of all: loads behind a branch would wait for the pack
  // before.
  template <typename Block>
  static ATELIER_LANE void draw_blocks(const PackedArguments& packed, const Place& place,
                                       Packs& values) {
    const uint64_t column = place.count<T>(0) > 0 ? uint64_t(place.column) : 0;
    const uint8_t* blocks = packed.codes + column / Block::kValues * Block::kBytes;
    Base::for_packs([&](int p) {
      const uint32_t behind = place.count<T>(p) > 0 ? p * uint32_t(place.step) : 0;
      const uint32_t at = uint32_t(column % Block::kValues) + behind;
      const uint8_t* block = blocks + at / Block::kValues * Block::kBytes;
      const int first = int(at % Block::kValues);
      const Group group = Block::group(block, first);
      float v[kElements];
      ATELIER_UNROLL
      for (int w = 0; w < kElements / 4; ++w) {
        const uint32_t codes = Block::codes(block, first + 4 * w);
        ATELIER_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float code = number_of<Block::kZero>(codes >> (8 * i) & 0xffu);
          v[4 * w + i] = product(code, group.scale) - group.offset;
        }
      }
      values[p] = narrow<T>(v);
    });
  }

  static ATELIER_LANE void draw_four_bit(const PackedArguments& packed, const Place& place,
                                         Packs& values) {
    uint32_t codes[Base::kLanePacks];
    float scales[Base::kLanePacks];
    Base::for_packs([&](int p) {
      const int count = place.count<T>(p);
      const uint64_t column = count > 0 ? uint64_t(place.column_of(p)) : 0;
      codes[p] = four_bit_codes(packed.codes + column / 2, count);
      scales[p] = packed.scales[column >> packed.block_bits];
    });
    Base::for_packs([&](int p) {
      float v[kElements];
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i) {
        const uint32_t code = codes[p] >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 15u;
        v[i] = product(packed.values[code], scales[p]);
      }
      values[p] = narrow<T>(v);
    });
  }

  // The bytes of `count` codes, zeros behind them.
  static ATELIER_LANE uint32_t four_bit_codes(const uint8_t* from, int count) {
    if (count == kElements) return kElements == 8 ? four_bytes(from) : two_bytes(from);
    uint32_t codes = 0;
    ATELIER_UNROLL
    for (int i = 0; i < kElements / 2; ++i) {
      if (2 * i < count) codes |= uint32_t(from[i]) << (8 * i);
    }
    return codes;
  }
};

extern const RowKernel draw_packed_rows = kernel_of<DrawPacked>();

}  // namespace atelier::ops::cuda
