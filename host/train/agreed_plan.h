// How a run is placed, which its processes have to have in common: what they exchange, and where
// it is sent from, depends on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/order/training.h"

namespace atelier::train {

// Where `config` has weights, activations and the optimizer, as text, beside the bytes that the
// device of this process has left.
std::string placement_text(const order::Training& config, int64_t room);
// Chooses among the texts of all processes, one at least, that of the process with the least
// room; of several the first.
const std::string& tightest_placement(const std::vector<std::string>& texts);
// Places `config` as the text says. Returns whether that is another placement than it had.
bool take_placement(const std::string& text, order::Training& config);

}  // namespace atelier::train
