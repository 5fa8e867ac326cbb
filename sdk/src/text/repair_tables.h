// What repair.cpp knows of characters, encodings and HTML.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace atelier::text::repair {

struct CharRange {
  char32_t first, last;
};

// Sets of characters by number: set s has the ranges from kSetStarts[s] to kSetStarts[s + 1],
// ascending. kWord has none of its own: letters, numbers and the low line.
constexpr uint8_t kWord = 0;
extern const std::span<const CharRange> kRanges;
extern const std::span<const uint16_t> kSetStarts;

// One character of each of `count` sets.
struct Sequence {
  bool at_start;  // of the whole text only
  uint8_t count;
  std::array<uint8_t, 7> sets;
};

extern const std::span<const Sequence> kBad;          // texts that were decoded wrongly have it
extern const std::span<const Sequence> kAlteredUtf8;  // bytes of UTF-8 whose A0 became 20
extern const std::span<const Sequence> kLossyUtf8;    // bytes of UTF-8 of which some are lost
extern const std::span<const Sequence> kUtf8Clues;    // UTF-8 read as one byte a character
extern const std::span<const Sequence> kUtf8Before;   // what does not stand before that
extern const std::span<const Sequence> kSpace;

// What bytes from 0x80 on, and 0x1A, are in an encoding of one byte a character.
struct Encoding {
  char16_t substitute;
  std::array<char16_t, 128> high;
};
extern const std::span<const Encoding> kEncodings;        // in the order in which they are tried
extern const std::array<char16_t, 32> kWindows1252;       // of bytes from 0x80; 0: not assigned
extern const std::array<char16_t, 239> kPlainWidths;      // of U+FF01 and on; 0: several characters
extern const std::string_view kEntities, kUpperEntities;  // "name=HEX,HEX ", or "name!HEX "

}  // namespace atelier::text::repair
