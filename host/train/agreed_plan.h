// The layout of a run, which its processes have to have in common: what they exchange, and where it
// is sent from, depends on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/parameters/layout.h"

namespace atelier::train {

// A layout as text, beside the bytes that the device of this process has left.
std::string layout_text(const parameters::Layout& layout, int64_t room);
// Chooses among the texts of all processes, one at least, that of the process with the least
// room; of several the first.
const std::string& tightest_layout(const std::vector<std::string>& texts);
// Makes `layout` what the text says. Returns whether it was another one.
bool take_layout(const std::string& text, parameters::Layout& layout);

}  // namespace atelier::train
