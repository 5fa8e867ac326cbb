#include "text/byte_trie.h"

namespace atelier::text {

void ByteTrie::add(std::string_view spelling, uint32_t value) {
  if (spelling.empty()) return;
  starts_[static_cast<uint8_t>(spelling[0])] = true;
  uint32_t node = 0;
  for (const char c : spelling) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    const auto [it, is_new] = edges_.try_emplace(edge, static_cast<uint32_t>(values_.size()));
    if (is_new) values_.emplace_back();
    node = it->second;
  }
  if (!values_[node]) values_[node] = value;
}

std::optional<ByteTrie::Match> ByteTrie::longest_match(std::string_view text) const {
  std::optional<Match> longest;
  if (text.empty() || !starts_[static_cast<uint8_t>(text[0])]) return longest;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (values_[node]) longest = Match{i + 1, *values_[node]};
  }
  return longest;
}

}  // namespace atelier::text
