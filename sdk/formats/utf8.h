// Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace atelier::formats {

struct Utf8Char {
  uint32_t code_point = 0;  // 0 when not valid
  size_t length = 1;        // bytes to move on; 1 when not valid
  bool valid = false;
};

// Decodes the character that starts at byte `at`, which must lie inside `text`.
Utf8Char decode_utf8(std::string_view text, size_t at);

// Returns the first byte that is not part of a valid character, or npos.
size_t find_invalid_utf8(std::string_view text);

// Appends `code_point`, at most U+10FFFF, as UTF-8.
void append_utf8(std::string& text, uint32_t code_point);

}  // namespace atelier::formats
