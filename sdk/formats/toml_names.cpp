#include "formats/toml_names.h"

#include <algorithm>
#include <string>

#include "formats/escape.h"
#include "formats/parse_error.h"
#include "formats/utf8.h"

namespace atelier::formats {

namespace {

// Where the string that begins at `at` ends; one in a single quotation mark ends with its line,
// too, which is no TOML.
size_t end_of_string(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool is_long = text.substr(at).starts_with(three);
  for (at += is_long ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (is_long && text.substr(at).starts_with(three)) {
      // The last three of up to five end it.
      at += 3;
      for (int i = 0; i < 2 && at < text.size() && text[at] == quote; ++i) ++at;
      return at;
    } else if (!is_long && (text[at] == quote || text[at] == '\n')) {
      return text[at] == quote ? at + 1 : at;
    }
  }
  return text.size();
}

ParseError error_at(std::string_view text, size_t at, const char* tag, const std::string& message) {
  return {tag,
          message,
          "TOML is expected: name = value, texts in quotes",
          {},
          1 + static_cast<uint64_t>(std::ranges::count(text.substr(0, at), '\n'))};
}

}  // namespace

void check_toml_names(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  size_t num_dots = 0;  // of the name at hand, or of a number
  for (size_t at = text.starts_with(kMark) ? kMark.size() : 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = end_of_string(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) num_dots = 0;
    if (c == '.' && ++num_dots >= kMaxTomlParts)
      throw error_at(text, at, "TOML_DEPTH",
                     "a name has more than " + std::to_string(kMaxTomlParts) + " parts");
    if (static_cast<unsigned char>(c) >= 0x80)
      throw error_at(text, at, "TOML_CHARACTER",
                     quote_and_escape(text.substr(at, decode_utf8(text, at).length)) +
                         " stands outside of quotes");
    ++at;
  }
}

}  // namespace atelier::formats
