// The config.json beside a checkpoint, held against the family's table.
#pragma once

#include <optional>

#include "atelier/model_family.h"

namespace atelier::model {

// As ModelFamily::detect(), and every field of the config is one that the family's table of the
// component allows. Throws one Error with tag CONFIG_FIELD that names all that are not: unknown
// ones, those with a value that is not computed, and those that contradict the tensors.
std::optional<Detection> detect_with_config(const ModelFamily& family,
                                            const TensorIndex& checkpoint, const DetectHint& hint);

}  // namespace atelier::model
