// References to characters in HTML.
#pragma once

#include <string>
#include <string_view>

namespace atelier::text {

// As Python's html.unescape().
std::u32string unescape_all(std::u32string_view text);

// Only those that end with a semicolon and are nothing else for sure, and common names in upper
// case: as ftfy's.
std::u32string unescape_plain_entities(std::u32string_view text);

}  // namespace atelier::text
