#include "formats/data_url.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "formats/base64.h"
#include "formats/escape.h"

namespace atelier::formats {

namespace {

constexpr std::string_view kScheme = "data:", kBase64 = ";base64";

}  // namespace

bool is_data_url(std::string_view text) {
  return text.size() >= kScheme.size() &&
         std::equal(kScheme.begin(), kScheme.end(), text.begin(),
                    [](char want, char c) { return want == (c >= 'A' && c <= 'Z' ? c + 32 : c); });
}

DataUrl parse_data_url(std::string_view text) {
  const size_t comma = text.find(',');
  if (!is_data_url(text) || comma == std::string_view::npos)
    throw ParseError("DATA_URL", quote_and_escape(text, 40) + " is no data: URL",
                     "write data:TYPE;base64,BYTES");
  const std::string_view about = text.substr(kScheme.size(), comma - kScheme.size());
  if (!about.ends_with(kBase64))
    throw ParseError("DATA_URL", quote_and_escape(text, 40) + " is not in base64",
                     "write data:TYPE;base64,BYTES");
  std::optional<std::string> bytes = decode_base64(text.substr(comma + 1));
  if (!bytes)
    throw ParseError("DATA_URL", quote_and_escape(text, 40) + " has bytes that are no base64");
  return {.content_type = std::string(about.substr(0, about.size() - kBase64.size())),
          .bytes = *std::move(bytes)};
}

}  // namespace atelier::formats
