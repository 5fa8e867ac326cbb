// What the kernels of a GPU that are played on the CPU were last asked for.
#pragma once

#include "ops/cuda/row_grid.h"

namespace atelier::ops::cuda {

struct Played {
  int64_t launches = 0;
  RowGrid grid = {};  // of the last one
};
const Played& played();

}  // namespace atelier::ops::cuda
