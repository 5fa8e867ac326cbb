// The flags that a family's inputs make.
#pragma once

#include <span>
#include <vector>

#include "atelier/input.h"

#include "host/flags/flags.h"

namespace atelier::inputs {

// One for each input of that use whose name is not among `taken`. Files are paths; a list is a
// repeated flag. Inputs that the family requires stay optional here, because they may come from a
// file.
std::vector<flags::FlagSpec> flags_of_inputs(std::span<const InputSpec> inputs, InputUse use,
                                             std::span<const flags::FlagSpec> taken = {});

}  // namespace atelier::inputs
