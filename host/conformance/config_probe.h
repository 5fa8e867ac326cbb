// Whether a family sees what a config says: it is given configs with invented values.
#pragma once

#include <string>
#include <vector>

#include "atelier/model_family.h"

namespace atelier::conformance {

// Puts every field of the family's table into a config of its own, with values of every type, for a
// checkpoint of `tensors`, which is detected without a config. A field that is read has to be
// refused or to change what is detected, one that is fixed or told to be refused, and one that is
// ignored to change nothing; a field that is in no row is refused by its name.
//
// Returns what is not so, a line each.
std::vector<std::string> config_faults(const ModelFamily& family,
                                       const TensorIndex::Tensors& tensors);

}  // namespace atelier::conformance
