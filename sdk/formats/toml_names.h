// Names in TOML, before its parser makes tables of them.
#pragma once

#include <cstddef>
#include <string_view>

namespace atelier::formats {

// Parts that a name with dots may have: "a.b.c" has three.
inline constexpr size_t kMaxTomlParts = 16;

// Each part of a name is one table in another, and tables are read and freed by recursion: a name
// of a million parts would end the process. Values that hold each other are limited by the parser.
//
// Throws ParseError with the line: TOML_DEPTH for a name with more parts than kMaxTomlParts,
// TOML_CHARACTER for what is not ASCII, for which the parser has undefined behaviour. Strings and
// comments do not count, and a mark of UTF-8 at the beginning; what is no TOML may pass.
void check_toml_names(std::string_view text);

}  // namespace atelier::formats
