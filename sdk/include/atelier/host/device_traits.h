// What operators may count on, of the devices that are there.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "atelier/export.h"

namespace atelier::ops {

// The compute capability of a CUDA device as one number: 86 is 8.6. Said once for each device, when
// CUDA is opened.
ATELIER_API void set_compute_capability(at::DeviceIndex index, int capability);
// 0: this is no CUDA device, or nobody said.
ATELIER_API int compute_capability(at::Device device);

// From now on the kernels that such devices have of these operators run by default, and of no
// others. Called before other threads run operators.
ATELIER_API void set_proven_kernels(at::DeviceType device, const std::vector<std::string>& ops);

}  // namespace atelier::ops
