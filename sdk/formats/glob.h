// Patterns for names: `*` any run of characters, `?` any one byte, no other special characters.
#pragma once

#include <string_view>

namespace atelier::formats {

// Says whether the whole of `name` matches. Linear in practice, at most
// pattern length times name length; dots and slashes are ordinary characters.
bool glob_match(std::string_view pattern, std::string_view name);

// Says whether `name` matches one of the patterns that stand between '|': "*-i2v-*|*-s2v-*".
bool any_glob_matches(std::string_view patterns, std::string_view name);

// Says whether `text` holds `*` or `?`.
bool has_glob(std::string_view text);

}  // namespace atelier::formats
