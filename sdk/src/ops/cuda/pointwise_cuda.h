// The fused pointwise kernels of GPUs, as ops/pointwise.cpp calls them.
#pragma once

#include "ops/pointwise_kernels.h"

namespace atelier::ops::cuda {

// All of them. They run wherever row_device.h runs rows.
extern const PointwiseKernels pointwise_kernels;

}  // namespace atelier::ops::cuda
