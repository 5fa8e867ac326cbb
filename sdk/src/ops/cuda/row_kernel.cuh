// The one kernel that runs functors on rows.
#pragma once

#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_functor.h"

namespace atelier::ops::cuda {

// Adds `sums` up over the lanes of a row, or finds the largest, the same order in every lane: by
// halves of a warp, then warp by warp. Two halves of `shared` take turns, so that one barrier is
// enough.
template <int kSums, bool kIsMaximum>
__device__ __forceinline__ void add_up_row(int lanes, int turn, float (&sums)[kMostSums]) {
  __shared__ float shared[2][kMostSums][kMostLanes / kWarp];
  ATELIER_UNINITIALIZED(shared);
  for (int far = (lanes < kWarp ? lanes : kWarp) / 2; far > 0; far /= 2) {
    ATELIER_UNROLL
    for (int k = 0; k < kSums; ++k)
      sums[k] = joined<kIsMaximum>(sums[k], __shfl_xor_sync(0xffffffffu, sums[k], far));
  }
  if (lanes <= kWarp) return;
  const int warps = lanes / kWarp;
  if (threadIdx.x % kWarp == 0) {
    ATELIER_UNROLL
    for (int k = 0; k < kSums; ++k) shared[turn][k][threadIdx.x / kWarp] = sums[k];
  }
  __syncthreads();
  ATELIER_UNROLL
  for (int k = 0; k < kSums; ++k) {
    sums[k] = 0;
    for (int w = 0; w < warps; ++w) sums[k] = joined<kIsMaximum>(sums[k], shared[turn][k][w]);
  }
}

template <typename F, int kPhase>
__device__ __forceinline__ void run_phases(const RowArguments& arguments, const RowGrid& grid,
                                           Place& place, typename F::Lane& lane,
                                           ColumnSums<F>& column_sums, float (&sums)[kMostSums],
                                           int& turn) {
  // Addresses are worked out anew in each phase, which takes fewer registers than to keep them.
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(place.column));
#endif
  F::template phase<kPhase>(arguments, place, lane, column_sums, sums);
  if constexpr (kPhase < F::kReductions) {
    add_up_row<F::kSums, kPhase == F::kMaximumBehind>(grid.lanes, turn, sums);
    turn ^= 1;
    run_phases<F, kPhase + 1>(arguments, grid, place, lane, column_sums, sums, turn);
  }
}

template <typename F>
__global__ void __maxnreg__(F::kMostRegisters)
    row_kernel(const __grid_constant__ RowGrid grid,
               const __grid_constant__ RowArguments arguments) {
  Chunk chunk(grid, blockIdx.x, threadIdx.x, F::kElements);
  ColumnSums<F> column_sums = {};
  int turn = 0;
  for (int64_t base = chunk.first_row; base < chunk.end_row; base += grid.rows_at_once) {
    chunk.move_to(grid, base, threadIdx.x);
    typename F::Lane lane;
    float sums[kMostSums] = {};
    run_phases<F, 0>(arguments, grid, chunk.place, lane, column_sums, sums, turn);
  }
  if constexpr (F::kColumnSums > 0) {
    if (arguments.partial_sums != nullptr)
      store_column_sums<F>(arguments, grid, chunk, threadIdx.x, column_sums);
  }
}

template <typename F>
int queue(const RowGrid& grid, const RowArguments& arguments, void* stream) {
  static_assert(F::kMostRegisters * kMostLanes <= kBlockRegisters);
  return queue_kernel(row_kernel<F>, grid.blocks(), grid.threads(), stream, grid, arguments);
}

template <template <typename> class F>
int launch(Element element, const RowGrid& grid, const RowArguments& arguments, void* stream) {
  if (element == Element::kBFloat16) return queue<F<BFloat16>>(grid, arguments, stream);
  if (element == Element::kFloat16) return queue<F<Float16>>(grid, arguments, stream);
  return queue<F<Float32>>(grid, arguments, stream);
}

template <template <typename> class F>
constexpr RowKernel kernel_of() {
  return {launch<F>, {F<Float32>::kLanePacks, F<BFloat16>::kLanePacks, F<Float16>::kLanePacks}};
}

}  // namespace atelier::ops::cuda
