// The kernels of GPUs.
#pragma once

#include <c10/core/Device.h>

namespace atelier::ops::cuda {

// Adds them to the operators' tables. They run wherever row_device.h runs rows. An operator is
// proven with the record that proved it: `tools/gpu check` passed and `tools/gpu kernels` found it
// faster than the composed form.
void register_kernels(at::DeviceType device, bool are_proven);

}  // namespace atelier::ops::cuda
