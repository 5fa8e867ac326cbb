// The device that plays kernels on the CPU; played/ops/cuda/row_kernel.cuh says how.
#include "sdk/cuda/row_player.h"

#include "ops/cuda/row_device.h"

namespace atelier::ops::cuda {
namespace {

Played last_played;

}  // namespace

const Played& played() {
  return last_played;
}

at::DeviceType row_device() {
  return at::kCPU;
}

void run_rows(const RowKernel& kernel, Element element, const RowGrid& grid,
              const RowArguments& arguments, c10::Device) {
  ++last_played.launches;
  last_played.grid = grid;
  kernel.launch(element, grid, arguments, nullptr);
}

void run_totals(const TotalsArguments& arguments, c10::Device) {
  for (int64_t block = 0; block < total_blocks(arguments); ++block) {
    for (int thread = 0; thread < kWarp; ++thread) {
      float groups[kTotalGroups];
      for (int g = 0; g < kTotalGroups; ++g)
        groups[g] = total_of_group(arguments, TotalPlace(arguments, block, thread + g * kWarp));
      store_total(arguments, TotalPlace(arguments, block, thread), groups);
    }
  }
}

}  // namespace atelier::ops::cuda
