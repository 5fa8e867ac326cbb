// The parts of Unicode that tokenizers rest on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace atelier::text {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Replaces what is not UTF-8 by U+FFFD, one for each longest beginning of a character.
std::string replace_invalid_utf8(std::string_view text);

// Normalisation form C of valid UTF-8 by Unicode 9.0, which is what Hugging Face's tokenizers
// holds to: what was assigned later stays as it is. O(n log n).
std::string to_nfc(std::string_view text);

// Normalises by the newest Unicode that utf8proc knows.
std::string to_newest_nfc(std::string_view text);

// How many bytes at `at`, which start no valid character, are the beginning of one; at least 1.
size_t invalid_utf8_length(std::string_view text, size_t at);

// Bytes of the extended grapheme cluster that valid UTF-8, not empty, begins with.
size_t grapheme_length(std::string_view text);

// The property White_Space.
bool is_space(uint32_t code_point);

// What a regular expression calls \w: letters, marks, decimal digits, connectors and joiners.
bool is_word(uint32_t code_point);

}  // namespace atelier::text
