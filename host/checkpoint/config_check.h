// The config.json beside a checkpoint: read into fields, and held against the family's table.
#pragma once

#include <optional>
#include <string_view>

#include "atelier/model_family.h"

namespace atelier::checkpoint {

// Nested objects become dotted names, and an empty one says nothing. Throws formats::ParseError,
// and Error{kInvalidArgument} when the text is no JSON object or says a field twice.
TensorIndex::Config parse_config(std::string_view json);

// As ModelFamily::detect(), and every field of the config is one that the family's table of the
// component allows. Throws one Error with tag CONFIG_FIELD that names all that are not: unknown
// ones, those with a value that is not computed, and those that contradict the tensors.
std::optional<Detection> detect_with_config(const ModelFamily& family,
                                            const TensorIndex& checkpoint, const DetectHint& hint);

}  // namespace atelier::checkpoint
