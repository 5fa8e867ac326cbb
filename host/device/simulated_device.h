// --device simulated: a device of host memory, to try what a GPU of some size would do.
#pragma once

#include <optional>
#include <string_view>

#include "memory/transfer_device.h"

namespace atelier::device {

// "simulated", "simulated:512MiB" (memory), "simulated:512MiB:4GB/s" (and the rate of copies);
// nullopt for the name of another device. Throws Error{kInvalidArgument}.
std::optional<memory::SimulatedDeviceOptions> parse_simulated_device(std::string_view name);

}  // namespace atelier::device
