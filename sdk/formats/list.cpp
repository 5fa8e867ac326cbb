#include "formats/list.h"

#include <algorithm>

#include "formats/escape.h"
#include "formats/json.h"

namespace atelier::formats {
namespace {

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

void lay_flat(const nlohmann::json& value, std::vector<std::string>& texts) {
  if (value.is_string()) {
    texts.push_back(value.get<std::string>());
    return;
  }
  if (!value.is_array())
    throw ParseError("LIST", quote_and_escape(value.dump()) + " is no text",
                     "write '[\"a\", \"b\"]', or a,b");
  for (const nlohmann::json& item : value) lay_flat(item, texts);
}

}  // namespace

std::vector<std::string> parse_list(std::string_view text) {
  std::vector<std::string> texts;
  std::string_view rest = without_spaces(text);
  if (rest.starts_with('[') && rest.ends_with(']')) {
    lay_flat(parse_json(rest), texts);
    return texts;
  }
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view part = without_spaces(rest.substr(0, end));
    if (!part.empty()) texts.emplace_back(part);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return texts;
}

}  // namespace atelier::formats
