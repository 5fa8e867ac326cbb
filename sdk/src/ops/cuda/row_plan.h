// The arithmetic of launches: lanes, chunks and blocks, from shapes alone.
#pragma once

#include <vector>

#include "ops/cuda/row_grid.h"

namespace atelier::ops::cuda {

inline constexpr int64_t kMostBlocks = 2147483647;
// Wider rows have more bytes than two packs of each lane: norms of them are not for these kernels.
inline constexpr int64_t kWidestRowBytes = 2 * 16 * kMostLanes;
// Wider rows have more bytes than four packs of each lane: codes of them are not, either.
inline constexpr int64_t kWidestCodesBytes = 4 * 16 * kMostLanes;

struct RowShape {
  int64_t width;
  int element_bytes;
  int lane_packs;
  bool adds_up_rows;     // lanes of a row share sums, so that it is not cut into tiles
  bool has_column_sums;  // blocks take many rows, so that there are few parts to add up
};

struct RowPlan {
  RowGrid grid;  // samples are by value where they are few, else yet to be put on the device
  std::vector<int64_t> first_chunks;
};

// `offsets`: of `samples` samples, [samples + 1], ascending from 0.
RowPlan plan_rows(const RowShape& shape, const int64_t* offsets, int64_t samples);

}  // namespace atelier::ops::cuda
