// Plays the kernels of a GPU on the CPU: block by block, lane by lane, sums in the device's order.
// The .cu files of operators, compiled as C++, find this file in the place of the SDK's.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/cuda/row_functor.h"

namespace atelier::ops::cuda {

template <typename F>
struct Player {
  struct LaneState {
    typename F::Lane lane;
    ColumnSums<F> column_sums;
    float sums[kMostSums];
    Chunk chunk;
  };

  const RowGrid& grid;
  const RowArguments& arguments;
  std::vector<LaneState> lanes;

  // As add_up_row of the SDK's row_kernel.cuh does.
  template <bool kIsMaximum>
  void add_up(int k) {
    const int threads = grid.threads(), part = std::min(grid.lanes, kWarp);
    std::vector<float> sums, halved(threads);
    for (const LaneState& s : lanes) sums.push_back(s.sums[k]);
    for (int far = part / 2; far > 0; far /= 2) {
      for (int t = 0; t < threads; ++t) halved[t] = joined<kIsMaximum>(sums[t], sums[t ^ far]);
      sums = halved;
    }
    if (grid.lanes > kWarp) {
      float total = 0;
      for (int w = 0; w < threads / kWarp; ++w) total = joined<kIsMaximum>(total, sums[w * kWarp]);
      sums.assign(threads, total);
    }
    for (int t = 0; t < threads; ++t) lanes[t].sums[k] = sums[t];
  }

  template <int kPhase>
  void run_phases() {
    for (LaneState& s : lanes) {
      F::template phase<kPhase>(arguments, s.chunk.place, s.lane, s.column_sums, s.sums);
    }
    if constexpr (kPhase < F::kReductions) {
      for (int k = 0; k < F::kSums; ++k) add_up<kPhase == F::kMaximumBehind>(k);
      run_phases<kPhase + 1>();
    }
  }

  void play_block(int64_t block) {
    lanes.clear();
    for (int t = 0; t < grid.threads(); ++t)
      lanes.push_back({{}, {}, {}, Chunk(grid, block, t, F::kElements)});
    const Chunk first = lanes[0].chunk;
    for (int64_t base = first.first_row; base < first.end_row; base += grid.rows_at_once) {
      for (int t = 0; t < grid.threads(); ++t) {
        lanes[t].chunk.move_to(grid, base, t);
        lanes[t].sums[0] = lanes[t].sums[1] = 0;
      }
      run_phases<0>();
    }
    if (F::kColumnSums == 0 || arguments.partial_sums == nullptr) return;
    for (int t = 0; t < grid.threads(); ++t)
      store_column_sums<F>(arguments, grid, lanes[t].chunk, t, lanes[t].column_sums);
  }
};

template <typename F>
int play(const RowGrid& grid, const RowArguments& arguments) {
  Player<F> player{grid, arguments, {}};
  for (int64_t block = 0; block < grid.blocks(); ++block) player.play_block(block);
  return 0;
}

template <template <typename> class F>
int launch(Element element, const RowGrid& grid, const RowArguments& arguments, void*) {
  if (element == Element::kBFloat16) return play<F<BFloat16>>(grid, arguments);
  if (element == Element::kFloat16) return play<F<Float16>>(grid, arguments);
  return play<F<Float32>>(grid, arguments);
}

template <template <typename> class F>
constexpr RowKernel kernel_of() {
  return {launch<F>, {F<Float32>::kLanePacks, F<BFloat16>::kLanePacks, F<Float16>::kLanePacks}};
}

}  // namespace atelier::ops::cuda
