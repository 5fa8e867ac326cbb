#include "text/unicode.h"

#include <algorithm>
#include <utf8proc.h>
#include <vector>

#include "atelier/error.h"

#include "formats/utf8.h"

namespace atelier::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// How many bytes at `at`, which start no valid character, are the beginning of one; at least 1.
size_t invalid_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0;
  };
  const uint8_t lead = byte(0);
  size_t expected = 1;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) expected = 2;
  if (lead >= 0xE0 && lead <= 0xEF) expected = 3;
  if (lead >= 0xF0 && lead <= 0xF4) expected = 4;
  if (lead == 0xE0) low = 0xA0;   // shorter forms exist
  if (lead == 0xED) high = 0x9F;  // surrogates
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
  size_t length = 1;
  while (length < expected && byte(length) >= low && byte(length) <= high) {
    ++length;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

int combining_class(int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Puts the combining marks in canonical order. utf8proc's own sort takes quadratic time.
void order_marks(std::vector<int32_t>::iterator begin, std::vector<int32_t>::iterator end) {
  const auto before = [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); };
  if (!std::is_sorted(begin, end, before)) std::stable_sort(begin, end, before);
}

}  // namespace

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t bad = formats::find_invalid_utf8(text);
    valid += text.substr(0, bad);
    if (bad == std::string_view::npos) break;
    valid += kReplacement;
    text.remove_prefix(bad + invalid_length(text, bad));
  }
  return valid;
}

std::string to_nfc(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<int8_t>(c) >= 0; })) {
    return std::string(text);
  }
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  constexpr int kMaxDecomposition = 8;

  std::vector<int32_t> chars;
  chars.reserve(text.size());
  size_t marks_begin = 0;
  for (size_t at = 0; at < text.size();) {
    const formats::Utf8Char c = formats::decode_utf8(text, at);
    at += c.length;
    int32_t parts[kMaxDecomposition];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(c.code_point), parts,
                                               kMaxDecomposition, kOptions, &boundary);
    if (count < 0 || count > kMaxDecomposition) {
      throw Error(ErrorCode::kInternal, std::string("utf8proc: ") + utf8proc_errmsg(count));
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      if (combining_class(parts[i]) == 0) {
        order_marks(chars.begin() + marks_begin, chars.end());
        marks_begin = chars.size() + 1;
      }
      chars.push_back(parts[i]);
    }
  }
  order_marks(chars.begin() + std::min(marks_begin, chars.size()), chars.end());

  const auto length =
      utf8proc_normalize_utf32(chars.data(), static_cast<utf8proc_ssize_t>(chars.size()), kOptions);
  if (length < 0) {
    throw Error(ErrorCode::kInternal, std::string("utf8proc: ") + utf8proc_errmsg(length));
  }
  std::string composed;
  composed.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    formats::append_utf8(composed, static_cast<uint32_t>(chars[i]));
  }
  return composed;
}

bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word(uint32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  const bool is_circled_letter = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                                 (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  const bool is_joiner = c == 0x200C || c == 0x200D;
  if (is_circled_letter || is_joiner) return true;
  switch (utf8proc_category(static_cast<int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace atelier::text
