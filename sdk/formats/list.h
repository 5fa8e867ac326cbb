// Lists of texts as people write them in flags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

// The texts of "a, b" or of the JSON list '["a", ["b", "c"]]', inner lists laid flat. Between
// commas, spaces around a text are no part of it, and empty ones are left out; a text that holds a
// comma needs the JSON.
//
// What begins with [ and ends with ] is JSON. Throws ParseError when it cannot be read as such, or
// holds something else than texts.
std::vector<std::string> parse_list(std::string_view text);

}  // namespace atelier::formats
