// Block numbers, which stand where names in a family's weight table have `{}`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace atelier::weights {

// The numbers that stand where `pattern` has `{}`; nullopt when `name` does not match.
std::optional<std::vector<std::string>> match_blocks(std::string_view pattern,
                                                     std::string_view name);
// The name with these numbers.
std::string fill_blocks(std::string_view pattern, const std::vector<std::string>& numbers);

}  // namespace atelier::weights
