#include "host/weights/block_numbers.h"

#include <algorithm>

namespace atelier::weights {

std::optional<std::vector<std::string>> match_blocks(std::string_view pattern,
                                                     std::string_view name) {
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
