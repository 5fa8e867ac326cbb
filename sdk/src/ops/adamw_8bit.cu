// AdamW with moments of 8 bits. A row of the grid is a block of 256 numbers with a scale of its
// own, flat in memory; the last one may be shorter. A lane has eight of them.
//
// Each operation rounds as the same one of LibTorch's kernel for CPUs with FMA does: products that
// are added are fused where that one fuses them, and nowhere else.
#include "ops/cuda/row_functor.h"
#include "ops/cuda/row_kernel.cuh"

namespace atelier::ops::cuda {

// --- stochastic rounding ---

// a * b: the upper and the lower half.
ATELIER_LANE void wide_product(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
  const uint64_t both = uint64_t(a) * b;
  high = uint32_t(both >> 32), low = uint32_t(both);
}

struct RandomWords {
  uint32_t at[4];
  ATELIER_LANE uint32_t half(int i) const { return at[i / 2] >> (i % 2 * 16) & 0xffffu; }
};

// Philox4x32-10 (Salmon et al. 2011).
ATELIER_LANE RandomWords philox(RandomWords counter, uint32_t key0, uint32_t key1) {
  ATELIER_UNROLL
  for (int round = 0; round < 10; ++round) {
    uint32_t high0, low0, high1, low1;
    wide_product(0xD2511F53u, counter.at[0], high0, low0);
    wide_product(0xCD9E8D57u, counter.at[2], high1, low1);
    counter = {{high1 ^ counter.at[1] ^ key0, low1, high0 ^ counter.at[3] ^ key1, low0}};
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return counter;
}

ATELIER_LANE bool is_finite(float v) {
  return (as_bits(v) & 0x7f800000u) != 0x7f800000u;
}

// A neighbour of v among the numbers of the type, by 16 random bits.
ATELIER_LANE float rounded_at_random(BFloat16, float v, uint32_t random) {
  return is_finite(v) ? as_float((as_bits(v) + random) & 0xffff0000u) : v;
}
ATELIER_LANE float rounded_at_random(Float16, float v, uint32_t random) {
  if (!is_finite(v)) return v;
  const int exponent = int(as_bits(v) >> 23 & 0xffu) - 126;
  const int unit = exponent - 11 < -24 ? -24 : exponent - 11;  // of the last place
  const double places = floor(ldexp(double(v), -unit) + double(random) * 0x1p-16);
  return float(copysign(ldexp(places, unit), double(v)));
}
ATELIER_LANE float rounded_at_random(Float32, float v, uint32_t) {
  return v;
}

// --- the step ---

template <typename T>
struct AdamWCodes : RowFunctor<T, 8 / kPackElements<T>> {
  using Base = RowFunctor<T, 8 / kPackElements<T>>;
  static constexpr int kPacks = Base::kLanePacks, kMostRegisters = 80;
  static constexpr int kElements = Base::kElements, kReductions = 1, kSums = 2, kColumnSums = 0;
  static constexpr int kMaximumBehind = 0;
  struct Lane {
    float moments[2][kPacks][kElements];
  };

  template <int kPhase, typename ColumnSums>
  static ATELIER_LANE void phase(const RowArguments& a, const Place& block, Lane& lane, ColumnSums&,
                                 float (&sums)[kMostSums]) {
    const AdamWArguments& step = a.adamw;
    if (*step.is_skipped != 0.0f) return;
    const Place place = in_block(step, block);
    if constexpr (kPhase == 0) {
      Base::for_packs([&](int p) {
        move(a, place, lane, p);
        ATELIER_UNROLL
        for (int k = 0; k < 2; ++k)
          sums[k] = largest_of<T>(lane.moments[k][p], sums[k], place.count<T>(p));
      });
    } else {
      ATELIER_UNROLL
      for (int k = 0; k < 2; ++k) {
        Base::for_packs(
            [&](int p) { put(step.moments[k], place, p, lane.moments[k][p], sums[k]); });
        if (place.is_active && place.column == 0) step.moments[k].absmax[place.row] = sums[k];
      }
    }
  }

 private:
  // With the width that is left to the last block, and as one of many samples: values of other
  // types than T are read by them.
  static ATELIER_LANE Place in_block(const AdamWArguments& step, const Place& block) {
    Place place = block;
    const int64_t left = step.numel - block.row * block.width;
    place.sample = block.row;
    place.width = left < block.width ? left : block.width;
    return place;
  }

  static ATELIER_LANE Input wide_input(const RowArguments& a) {
    return {a.adamw.master, a.out.stride, a.out.is_aligned, /*is_wide=*/true};
  }

  // Moves the numbers of a pack, and leaves their new moments in the lane.
  static ATELIER_LANE void move(const RowArguments& a, const Place& place, Lane& lane, int p) {
    const AdamWArguments& step = a.adamw;
    float weight[kElements], gradient[kElements];
    load_sample<T>(a.x, place, p, gradient);
    load_sample<T>(step.master != nullptr ? wide_input(a) : a.y, place, p, weight);
    draw(step.moments[0], place, p, lane.moments[0][p]);
    draw(step.moments[1], place, p, lane.moments[1][p]);
    const float scale = *step.grad_scale, rate = step.corrections[0], root = step.corrections[1];
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      float &first = lane.moments[0][p][i], &second = lane.moments[1][p][i];
      const float grad = gradient[i] / scale;
      const float decayed = product(weight[i], step.decay);
      first = fmaf(step.lerp, grad - first, step.lerps_back ? grad : first);
      second = fmaf(product(step.rest2, grad), grad, product(second, step.beta2));
      const float below = sqrtf(second) / root + step.eps;
      weight[i] = decayed + product(-rate, first) / below;
    }
    store(a, place, p, weight);
  }

  static ATELIER_LANE void draw(const MomentArguments& moment, const Place& place, int p,
                                float (&v)[kElements]) {
    const Codes<T> codes = load_codes<T>(moment.codes_in(), place, p);
    const float largest = place.is_active ? moment.absmax[place.row] : 0.0f;
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i)
      v[i] = product(moment.values[codes.words[i / 4] >> (i % 4 * 8) & 0xffu], largest);
  }

  static ATELIER_LANE void put(const MomentArguments& moment, const Place& place, int p,
                               const float (&v)[kElements], float largest) {
    const float divisor = largest > 0.0f ? largest : 1.0f;
    Codes<T> codes = {};
    ATELIER_UNROLL
    for (int i = 0; i < kElements; ++i) {
      const float part = v[i] / divisor;
      const uint32_t first = moment.first_codes[as_bits(part) >> 16];
      const uint32_t code = first + (part > moment.borders[first] ? 1u : 0u);
      codes.words[i / 4] |= code << (i % 4 * 8);
    }
    put_codes<T>(moment.codes_out(), place, p, codes);
  }

  static ATELIER_LANE void store(const RowArguments& a, const Place& place, int p,
                                 float (&weight)[kElements]) {
    const AdamWArguments& step = a.adamw;
    if (step.master != nullptr) {
      store_wide<T>(step.master, a.out.stride, a.out.is_aligned, place, p, weight);
    } else if (kElements == 8) {
      const uint64_t place_of_eight =
          (step.first + uint64_t(place.row * a.out.stride + place.column_of(p))) / 8;
      const RandomWords random = philox(
          {{uint32_t(place_of_eight), step.parameter, step.step, uint32_t(place_of_eight >> 32)}},
          step.key[0], step.key[1]);
      ATELIER_UNROLL
      for (int i = 0; i < kElements; ++i)
        weight[i] = rounded_at_random(T(), weight[i], random.half(i));
    }
    store_row<T>(a.out, place, p, narrow<T>(weight));
  }
};

extern const RowKernel adamw_8bit_rows = kernel_of<AdamWCodes>();

}  // namespace atelier::ops::cuda
