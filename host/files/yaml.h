// YAML as a tree of JSON: what settings are written in, and no more.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace atelier::files {

// Reads one document of maps with names for keys, lists and scalars. Plain scalars are null,
// booleans and numbers where they look so; `yes` and `no` are booleans, as for PyYAML. Aliases
// stand for what they name.
//
// Throws formats::ParseError: YAML_SYNTAX with the line, YAML_DUPLICATE_KEY, YAML_TOO_LARGE for
// more than 64 KiB, 10'000 values or 32 levels.
nlohmann::json parse_yaml(std::string_view text);

}  // namespace atelier::files
