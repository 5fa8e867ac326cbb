// Whether a family sees what a config says: it is given configs with invented values.
#pragma once

#include <string>
#include <vector>

#include "atelier/model_family.h"

namespace atelier::conformance {

// What a config says of `part` that its tensors say too. Tiny parts need one to be recognised:
// their shapes are not those of a published model, whose other numbers are known.
TensorIndex::Config told_config(const ModelFamily& family, const Detection& part);

// Puts every field of the family's table into a config, each for itself beside told_config(), with
// values of every type, for a checkpoint that holds `tensors` of `part`. A field that is read has
// to be refused or to change what is detected, one that is fixed or told to be refused, and one
// that is ignored to change nothing; a field that is in no row is refused by its name.
//
// Returns what is not so, a line each.
std::vector<std::string> config_faults(const ModelFamily& family, const Detection& part,
                                       const TensorIndex::Tensors& tensors);

}  // namespace atelier::conformance
