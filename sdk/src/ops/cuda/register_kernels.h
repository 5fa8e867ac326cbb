// The kernels of GPUs.
#pragma once

#include <functional>
#include <string_view>

#include <c10/core/Device.h>

namespace atelier::ops::cuda {

// Adds them to the operators' tables. They run wherever row_device.h runs rows, by default those of
// operators that `is_proven` names.
void register_kernels(at::DeviceType device,
                      const std::function<bool(std::string_view op)>& is_proven);

}  // namespace atelier::ops::cuda
