// What one lane does with a row.
//
// A functor has phases: between phase i and i + 1 the kernel adds `sums` up over the lanes of the
// row, each of `kReductions` times the first kSums of them. A lane loads its inputs in phase 0,
// keeps them as they were read, and writes in the last phase. How many packs a lane has, and
// kMostRegisters, are such that a multiprocessor of a Hopper GPU has 32 KB of inputs under way,
// which is what hides its memory's latency.
// Factors and shifts of a sample are read again for each row, out of caches, as registers are few.
// `kColumnSums` sums over rows are left in `ColumnSums` where they are wanted.
#pragma once

#include "ops/cuda/row_codes.h"
#include "ops/cuda/row_math.h"

namespace atelier::ops::cuda {

inline constexpr int kMostSums = 2;  // between two phases

// What lanes make of two of their values.
template <bool kIsMaximum>
ATELIER_LANE float joined(float a, float b) {
  return kIsMaximum ? larger(a, b) : a + b;
}

// Where a functor adds up over rows, by lane.
template <typename F>
struct ColumnSums {
  float at[F::kColumnSums > 0 ? F::kColumnSums : 1][F::kLanePacks][F::kElements];
};

// Behind the last row of a chunk.
template <typename F>
ATELIER_LANE void store_column_sums(const RowArguments& arguments, const RowGrid& grid,
                                    const Chunk& chunk, int thread, const ColumnSums<F>& sums) {
  Place place = chunk.place;
  place.is_active = true;
  const int64_t part = chunk.index * grid.rows_at_once + thread / grid.lanes;
  ATELIER_UNROLL
  for (int k = 0; k < F::kColumnSums; ++k) {
    ATELIER_UNROLL
    for (int p = 0; p < F::kLanePacks; ++p)
      store_sums<typename F::Row>(arguments.partial_sums + (part * F::kColumnSums + k) * grid.width,
                                  place, p, sums.at[k][p]);
  }
}

template <typename T, int kOfLane>
struct RowFunctor {
  static constexpr int kElements = kPackElements<T>;
  static constexpr int kLanePacks = kOfLane;
  // The phase behind which the largest of `sums` is told instead of their sum.
  static constexpr int kMaximumBehind = -1;
  // No more are left to each lane of kMostLanes.
  static constexpr int kMostRegisters = 128;
  using Row = T;
  using Values = float[kElements];

  template <typename F>
  static ATELIER_LANE void for_packs(F&& run) {
    ATELIER_UNROLL
    for (int p = 0; p < kOfLane; ++p) run(p);
  }

  static ATELIER_LANE void load(const Input& from, const Place& place, Pack (&to)[kOfLane]) {
    for_packs([&](int p) { to[p] = load_row<T>(from, place, p); });
  }
};

struct NoLane {};

// Nothing to add up along a row, so that there is one phase.
template <typename T, int kOfLane = 2>
struct PlainFunctor : RowFunctor<T, kOfLane> {
  using Packs = Pack[kOfLane];
  static constexpr int kMostRegisters = 64;
  static constexpr int kReductions = 0, kSums = 0, kColumnSums = 0;
  using Lane = NoLane;
};

template <typename T, int kCount>
ATELIER_LANE float squares_of(const Pack (&packs)[kCount]) {
  float sum = 0;
  ATELIER_UNROLL
  for (int p = 0; p < kCount; ++p) {
    float v[kPackElements<T>];
    widen<T>(packs[p], v);
    ATELIER_UNROLL
    for (int i = 0; i < kPackElements<T>; ++i) sum += v[i] * v[i];
  }
  return sum;
}

}  // namespace atelier::ops::cuda
