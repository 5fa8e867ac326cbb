// The device that plays kernels on the CPU; kernel_player.cpp says how.
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
  atelier_cuda_column_totals(&arguments, nullptr);
}

}  // namespace atelier::ops::cuda
