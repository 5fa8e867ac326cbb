#include "formats/chars_map.h"

#include "formats/utf8.h"

namespace atelier::formats {
namespace {

uint32_t little_endian(std::string_view four) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(four[i]);
  return value;
}

}  // namespace

CharsMap::CharsMap(std::string_view bytes) {
  const auto check = [](bool is_good, const char* message) {
    if (is_good) return;
    throw ParseError("SP_CHARSMAP", std::string("precompiled_charsmap ") + message,
                     "use the tokenizer file that is published with the model");
  };
  check(bytes.size() > 4, "is cut off");
  const uint32_t length = little_endian(bytes);
  bytes.remove_prefix(4);
  check(length > 0 && length % 4 == 0 && length < bytes.size(), "has a trie of another length");
  units_.resize(length / 4);
  for (size_t i = 0; i < units_.size(); ++i) units_[i] = little_endian(bytes.substr(4 * i, 4));
  replacements_ = bytes.substr(length);
  check(replacements_.back() == '\0', "does not end a replacement");
  check(find_invalid_utf8(replacements_) == std::string_view::npos, "is not UTF-8");
}

std::optional<uint32_t> CharsMap::unit(uint32_t at) const {
  if (at >= units_.size()) return std::nullopt;
  return units_[at];
}

std::optional<CharsMap::Match> CharsMap::match(std::string_view text, bool stops_at_first) const {
  constexpr uint32_t kLabel = (1U << 31) | 0xFFU, kValue = (1U << 31) - 1;
  const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); };
  const auto has_value = [](uint32_t unit) { return ((unit >> 8) & 1U) != 0; };
  if (units_.empty()) return std::nullopt;
  size_t length = 0;
  uint32_t value = 0;
  uint32_t at = offset(units_[0]);
  for (size_t i = 0; i < text.size() && !(stops_at_first && length > 0); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    at ^= byte;
    const std::optional<uint32_t> node = unit(at);
    if (!node || (*node & kLabel) != byte) break;
    at ^= offset(*node);
    if (!has_value(*node)) continue;
    const std::optional<uint32_t> leaf = unit(at);
    if (!leaf || (*leaf & kValue) >= replacements_.size()) break;
    length = i + 1;
    value = *leaf & kValue;
  }
  if (length == 0) return std::nullopt;
  return Match{length, std::string_view(replacements_.c_str() + value)};
}

}  // namespace atelier::formats
