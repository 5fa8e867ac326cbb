// Texts as they were meant: what copying, wrong encodings and web pages did to them is undone.
#pragma once

#include <string>
#include <string_view>

#include "atelier/export.h"

namespace atelier::text {

// What ftfy 6.3.1's fix_text() gives, some published models' texts having been cleaned with it:
// entities of HTML, UTF-8 that was read as another encoding, ligatures, wide and narrow forms,
// curly quotes, line breaks, surrogates, escapes of terminals and control characters are replaced
// line by line until nothing changes, and the text is in normalisation form C. What is not UTF-8
// becomes U+FFFD.
ATELIER_API std::string fix_text(std::string_view text);

// Replaces all references to characters, as Python's html.unescape() and browsers do: "&lt;",
// "&#60;", and without a semicolon those that HTML allows so.
ATELIER_API std::string unescape_html(std::string_view text);

// Every run of white space, as Python's \s, becomes one space; at both ends it goes.
ATELIER_API std::string collapse_spaces(std::string_view text);

}  // namespace atelier::text
