// Foreign names made safe for messages and terminals.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace atelier::formats {

// Returns `name` in double quotes with C-style escapes for quotes, backslashes, control characters
// and bytes that are not valid UTF-8. Longer than `max_chars` (quotes included) is cut and ends
// in `…"`; other characters, Chinese for instance, stay as they are and count once.
std::string quote_and_escape(std::string_view name, size_t max_chars = 120);

}  // namespace atelier::formats
