#include "text/byte_trie.h"

#include <algorithm>
#include <deque>

namespace atelier::text {

ByteTrie::ByteTrie(std::vector<Entry> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.first < b.first; });
  // The entries below a node, of which the first `depth` bytes are the same.
  struct Range {
    size_t begin, end, depth;
  };
  std::deque<Range> open;  // of nodes in their order, those whose children are to be made
  // Makes the children of a range, and returns the first one.
  const auto expand = [&](Range range) {
    const auto first = static_cast<uint32_t>(bytes_.size());
    const auto spelling = [&](size_t i) { return std::string_view(entries[i].first); };
    while (range.begin < range.end && spelling(range.begin).size() == range.depth) ++range.begin;
    while (range.begin < range.end) {
      const char byte = spelling(range.begin)[range.depth];
      size_t end = range.begin;
      while (end < range.end && spelling(end)[range.depth] == byte) ++end;
      const bool is_whole = spelling(range.begin).size() == range.depth + 1;
      bytes_.push_back(static_cast<uint8_t>(byte));
      values_.push_back(is_whole ? entries[range.begin].second : kNone);
      open.push_back({range.begin, end, range.depth + 1});
      range.begin = end;
    }
    return first;
  };

  expand({0, entries.size(), 0});
  roots_.fill(kNone);
  for (uint32_t node = 0; node < bytes_.size(); ++node) roots_[bytes_[node]] = node;
  while (!open.empty()) {
    const Range range = open.front();
    open.pop_front();
    children_.push_back(expand(range));
  }
  children_.push_back(static_cast<uint32_t>(bytes_.size()));
}

uint32_t ByteTrie::child(uint32_t node, uint8_t byte) const {
  const auto begin = bytes_.begin() + children_[node], end = bytes_.begin() + children_[node + 1];
  const auto found = std::lower_bound(begin, end, byte);
  return found == end || *found != byte ? kNone : static_cast<uint32_t>(found - bytes_.begin());
}

}  // namespace atelier::text
