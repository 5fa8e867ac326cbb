// Where kernels on rows run: on a GPU (cuda/row_launch.cpp), or played on the CPU by the tests.
#pragma once

#include <c10/core/Device.h>

#include "ops/cuda/column_totals.h"
#include "ops/cuda/row_grid.h"

namespace atelier::ops::cuda {

// The kind of device that the kernels are registered for.
at::DeviceType row_device();

// Queues the kernel on the device's current stream. Throws what the device says against it.
void run_rows(const RowKernel& kernel, Element element, const RowGrid& grid,
              const RowArguments& arguments, c10::Device device);
void run_totals(const TotalsArguments& arguments, c10::Device device);

}  // namespace atelier::ops::cuda
