// Finds which of many spellings a text begins with.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace atelier::text {

// Immutable after construction.
class ByteTrie {
 public:
  struct Match {
    size_t length;
    uint32_t value;
  };
  using Entry = std::pair<std::string, uint32_t>;

  ByteTrie() : ByteTrie(std::vector<Entry>()) {}
  // Spellings and their values. An empty spelling is left out; of a spelling that is there twice
  // the first value holds.
  explicit ByteTrie(std::vector<Entry> entries);

  std::optional<Match> longest_match(std::string_view text) const {
    std::optional<Match> longest;
    for_each_match(text, [&](const Match& match) { longest = match; });
    return longest;
  }

  // Calls `use` with every spelling that `text` begins with, the shortest one first.
  template <typename Use>
  void for_each_match(std::string_view text, const Use& use) const {
    if (text.empty()) return;
    uint32_t node = roots_[static_cast<uint8_t>(text[0])];
    for (size_t length = 1; node != kNone; ++length) {
      if (values_[node] != kNone) use(Match{length, values_[node]});
      if (length == text.size()) return;
      node = child(node, static_cast<uint8_t>(text[length]));
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t child(uint32_t node, uint8_t byte) const;

  std::array<uint32_t, 256> roots_;  // nodes of first bytes
  // The byte that leads to each node, the node's value, and its first child. Children of a node
  // follow each other by rising byte, and those of the next node come behind them.
  std::vector<uint8_t> bytes_;
  std::vector<uint32_t> values_;
  std::vector<uint32_t> children_;
};

}  // namespace atelier::text
