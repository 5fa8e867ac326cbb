// The tokens that are cut out of a text before it is split into words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_files.h"
#include "text/byte_trie.h"

namespace atelier::text {

class AddedTokens {
 public:
  struct Piece {
    std::string_view text;
    std::optional<uint32_t> id;  // of the added token; none: text between two
  };

  // A token, and the spelling that is looked for: its text or its normalised form.
  struct Entry {
    std::string spelling;
    const formats::AddedToken* token;
  };

  AddedTokens() = default;
  explicit AddedTokens(const std::vector<Entry>& entries);

  // Cuts valid UTF-8. At each place the longest token wins, from left to right.
  std::vector<Piece> cut(std::string_view text) const;

 private:
  struct Rule {
    uint32_t id;
    bool strips_left, strips_right, is_single_word;
  };
  ByteTrie spellings_;  // their values are places in rules_
  std::vector<Rule> rules_;
};

}  // namespace atelier::text
