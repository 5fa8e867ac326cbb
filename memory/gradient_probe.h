// Whether gradients show that a value was read which somebody put in to be noticed.
#pragma once

#include <optional>

#include "atelier/block.h"

namespace atelier::memory {

enum class Probe {
  kNaN,    // NaN was put in: a gradient that read it is NaN
  kLarge,  // the largest values were: a gradient that read them is of quite another size
};

// Whether `probed` read what was put in; `given`: the gradients without. On the host, where a
// gradient that is made twice is the same to the bit, any other bit says so. `to_the_bit`: for
// tests, whether that is so; absent: where the tensors are says it.
//
// Elsewhere kernels add up in any order, and bfloat16 values differ by a few units of their last
// place, 2^-8: there NaN counts where none was, and for kLarge 1/50 of the largest value.
bool are_touched(const Tensors& probed, const Tensors& given, Probe probe,
                 std::optional<bool> to_the_bit = std::nullopt);

}  // namespace atelier::memory
