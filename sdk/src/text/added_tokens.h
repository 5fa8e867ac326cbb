// The tokens that are cut out of a text before it is split into words.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/tokenizer_files.h"

namespace atelier::text {

class AddedTokens {
 public:
  struct Piece {
    std::string_view text;
    std::optional<uint32_t> id;  // of the added token; none: text between two
  };

  // `spelling`: what is looked for, the token's text or its normalised form.
  void add(std::string_view spelling, const formats::AddedToken& token);

  // Cuts valid UTF-8. At each place the longest token wins, from left to right.
  std::vector<Piece> cut(std::string_view text) const;

 private:
  struct Rule {
    uint32_t id;
    bool strips_left, strips_right, is_single_word;
  };
  struct Match {
    size_t length;
    const Rule* rule;
  };
  std::optional<Match> longest_match(std::string_view text) const;

  // A trie over bytes. Node 0 is the root; an edge's key is its node << 8 | byte.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<std::optional<Rule>> nodes_{std::nullopt};
  std::array<bool, 256> starts_{};
};

}  // namespace atelier::text
