// Finds the longest of many spellings that a text begins with.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace atelier::text {

class ByteTrie {
 public:
  struct Match {
    size_t length;
    uint32_t value;
  };

  // An empty spelling is left out; of a spelling added twice the first value holds.
  void add(std::string_view spelling, uint32_t value);

  std::optional<Match> longest_match(std::string_view text) const;

 private:
  // Node 0 is the root; an edge's key is its node << 8 | byte.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<std::optional<uint32_t>> values_{std::nullopt};
  std::array<bool, 256> starts_{};
};

}  // namespace atelier::text
