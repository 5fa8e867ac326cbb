// The compiled rules of a SentencePiece normalizer ("precompiled_charsmap").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

// What a beginning of a text becomes.
class CharsMap {
 public:
  struct Match {
    size_t length;                 // bytes of the text, more than 0
    std::string_view replacement;  // may be empty
  };

  CharsMap() = default;  // no rules
  // Throws ParseError: SP_CHARSMAP.
  explicit CharsMap(std::string_view bytes);

  // The longest, and the shortest, beginning of `text` that has a rule.
  std::optional<Match> longest_match(std::string_view text) const { return match(text, false); }
  std::optional<Match> shortest_match(std::string_view text) const { return match(text, true); }

 private:
  std::optional<Match> match(std::string_view text, bool stops_at_first) const;
  std::optional<uint32_t> unit(uint32_t at) const;

  std::vector<uint32_t> units_;  // a double array: a trie over bytes
  std::string replacements_;     // each ends with NUL
};

}  // namespace atelier::formats
