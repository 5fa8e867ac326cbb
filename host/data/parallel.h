// Work on many things at once.
#pragma once

#include <cstddef>
#include <functional>

namespace atelier::data {

// Calls `run` for 0 … count - 1 on all cores. Throws what the call of the lowest number threw.
void for_each_in_parallel(size_t count, const std::function<void(size_t)>& run);

}  // namespace atelier::data
