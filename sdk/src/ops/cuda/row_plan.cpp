#include "ops/cuda/row_plan.h"

#include <algorithm>

namespace atelier::ops::cuda {
namespace {

// Lanes of one tile where they need not add up, and of a block with several short rows.
constexpr int kUsualLanes = 256;
// Rows that a block takes where it has no sums to keep, so that it reads modulations less often;
// only where blocks are many.
constexpr int64_t kMostRows = 4, kManyRows = 4096;
// Blocks that leave sums.
constexpr int64_t kParts = 512;

int64_t divided_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int warps_for(int64_t lanes) {
  return static_cast<int>(divided_up(lanes, kWarp)) * kWarp;
}

void choose_lanes(const RowShape& shape, RowGrid& grid) {
  const int64_t lanes = divided_up(shape.width * shape.element_bytes, 16 * shape.lane_packs);
  grid.packs = shape.lane_packs, grid.tiles = 1, grid.rows_at_once = 1;
  if (lanes <= kWarp) {
    grid.lanes = 1;
    while (grid.lanes < lanes) grid.lanes *= 2;
    grid.rows_at_once = kUsualLanes / grid.lanes;
  } else if (shape.adds_up_rows) {
    grid.lanes = warps_for(lanes);
  } else {
    grid.tiles = divided_up(lanes, kUsualLanes);
    grid.lanes = warps_for(divided_up(lanes, grid.tiles));
  }
}

std::vector<int64_t> chunks_before(const int64_t* offsets, int64_t samples, int64_t chunk_rows) {
  std::vector<int64_t> before = {0};
  for (int64_t s = 0; s < samples; ++s)
    before.push_back(before.back() + divided_up(offsets[s + 1] - offsets[s], chunk_rows));
  return before;
}

}  // namespace

RowPlan plan_rows(const RowShape& shape, const int64_t* offsets, int64_t samples) {
  RowPlan plan = {};
  RowGrid& grid = plan.grid;
  grid.width = shape.width;
  choose_lanes(shape, grid);
  const int64_t rows = divided_up(offsets[samples], grid.rows_at_once);
  const int64_t rounds = shape.has_column_sums
                             ? std::max<int64_t>(1, divided_up(rows, kParts))
                             : std::clamp<int64_t>(rows / kManyRows, 1, kMostRows);
  grid.chunk_rows = rounds * grid.rows_at_once;
  plan.first_chunks = chunks_before(offsets, samples, grid.chunk_rows);
  while (plan.first_chunks.back() > kMostBlocks / grid.tiles) {
    grid.chunk_rows *= 2;
    plan.first_chunks = chunks_before(offsets, samples, grid.chunk_rows);
  }
  grid.chunks = plan.first_chunks.back();
  grid.samples.count = samples;
  if (samples <= kSamplesByValue) {
    std::copy(offsets, offsets + samples + 1, grid.samples.offsets);
    std::copy(plan.first_chunks.begin(), plan.first_chunks.end(), grid.samples.first_chunks);
  }
  return plan;
}

}  // namespace atelier::ops::cuda
