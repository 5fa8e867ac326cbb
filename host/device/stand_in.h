// --device stand-in: a device of host memory, to try what a GPU of some size would do.
#pragma once

#include <optional>
#include <string_view>

#include "memory/port.h"

namespace atelier::device {

// "stand-in", "stand-in:512MiB" (memory), "stand-in:512MiB:4GB/s" (and the rate of copies); nullopt
// for the name of another device. Throws Error{kInvalidArgument}.
std::optional<memory::StandInOptions> parse_stand_in(std::string_view name);

}  // namespace atelier::device
