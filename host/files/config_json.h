// The text of a config.json as the fields that families read.
#pragma once

#include <string_view>

#include "atelier/checkpoint.h"

namespace atelier::files {

// Nested objects become dotted names, and an empty one says nothing. Throws formats::ParseError,
// and Error{kInvalidArgument} when the text is no JSON object or says a field twice.
TensorIndex::Config parse_config(std::string_view json);

}  // namespace atelier::files
