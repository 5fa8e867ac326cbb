#include "host/weights/block_numbers.h"

#include <algorithm>

namespace atelier::weights {

namespace {

// False where the text behind a pattern's last hole is not the end of the name. Most rows of a
// table begin alike, so this is soonest known of the end.
bool may_end_so(std::string_view pattern, std::string_view name) {
  while (!pattern.empty() && pattern.back() != '}') {
    if (name.empty() || pattern.back() != name.back()) return false;
    pattern.remove_suffix(1);
    name.remove_suffix(1);
  }
  return true;
}

}  // namespace

std::optional<std::vector<std::string>> match_blocks(std::string_view pattern,
                                                     std::string_view name) {
  if (!may_end_so(pattern, name)) return std::nullopt;
  std::vector<std::string> numbers;
  while (true) {
    const size_t hole = pattern.find("{}");
    const std::string_view literal = pattern.substr(0, hole);
    if (!name.starts_with(literal)) return std::nullopt;
    name.remove_prefix(literal.size());
    if (hole == std::string_view::npos) {
      if (!name.empty()) return std::nullopt;
      return numbers;
    }
    pattern.remove_prefix(hole + 2);
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    // "007" is no block number: it would not come back when the table is read backwards.
    if (digits == 0 || (digits > 1 && name.front() == '0')) return std::nullopt;
    numbers.emplace_back(name.substr(0, digits));
    name.remove_prefix(digits);
  }
}

std::string fill_blocks(std::string_view pattern, const std::vector<std::string>& numbers) {
  std::string out;
  for (size_t i = 0;; ++i) {
    const size_t hole = pattern.find("{}");
    out += pattern.substr(0, hole);
    if (hole == std::string_view::npos) return out;
    if (i < numbers.size()) out += numbers[i];
    pattern.remove_prefix(hole + 2);
  }
}

}  // namespace atelier::weights
