// The second half of sums over rows: the chunks of each sample, added up in one order.
#pragma once

#include "ops/cuda/row_grid.h"

namespace atelier::ops::cuda {

struct TotalsArguments {
  const float* parts;  // [chunks * rows_at_once, columns]
  float* totals;       // [samples, columns]
  int64_t columns;     // all sums of a row
  int rows_at_once;
  Samples samples;
};

// A block has 32 columns of a sample, and this many lanes for each, which take turns at its parts.
inline constexpr int kTotalGroups = 8;

ATELIER_LANE int64_t total_blocks(const TotalsArguments& a) {
  return a.samples.count * ((a.columns + kWarp - 1) / kWarp);
}

struct TotalPlace {
  int64_t sample, column;
  int group;

  ATELIER_LANE TotalPlace(const TotalsArguments& a, int64_t block, int thread) {
    const int64_t blocks_of_sample = (a.columns + kWarp - 1) / kWarp;
    sample = block / blocks_of_sample;
    column = block % blocks_of_sample * kWarp + thread % kWarp;
    group = thread / kWarp;
  }
};

ATELIER_LANE float total_of_group(const TotalsArguments& a, const TotalPlace& place) {
  float sum = 0;
  if (place.column >= a.columns) return sum;
  const int64_t end = a.samples.first_chunk(place.sample + 1) * a.rows_at_once;
  for (int64_t row = a.samples.first_chunk(place.sample) * a.rows_at_once + place.group; row < end;
       row += kTotalGroups)
    sum += a.parts[row * a.columns + place.column];
  return sum;
}

// groups: what total_of_group gave for each group of this column.
ATELIER_LANE void store_total(const TotalsArguments& a, const TotalPlace& place,
                              const float (&groups)[kTotalGroups]) {
  if (place.column >= a.columns) return;
  float sum = 0;
  ATELIER_UNROLL
  for (int g = 0; g < kTotalGroups; ++g) sum += groups[g];
  a.totals[place.sample * a.columns + place.column] = sum;
}

}  // namespace atelier::ops::cuda

// Queues the kernel on a stream of the current device; the CUDA error, 0 for none.
extern "C" int atelier_cuda_column_totals(const atelier::ops::cuda::TotalsArguments*, void* stream);
