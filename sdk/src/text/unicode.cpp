#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <utf8proc.h>
#include <vector>

#include "atelier/error.h"

#include "formats/utf8.h"

namespace atelier::text {
namespace {

struct CodeRange {
  uint32_t first;
  uint32_t last;
};

// What normalisation has known since Unicode 10.0 to 15.0: combining marks, and the one composed
// character U+11938 with its part. The published ids come from Hugging Face's tokenizers, whose
// tables of normalisation (the crate unicode-normalization-alignments) are those of Unicode 9.0;
// utf8proc's are those of 15.0. tests/parity/tokenizer_parity_test.py compares all code points.
constexpr std::array<CodeRange, 38> kNewerThanUnicode9 = {{
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
}};

// Not a final consonant, but the place before the first; utf8proc 2.8 composes it away.
bool is_before_final_consonants(uint32_t c) {
  return c == 0x11A7;
}

bool is_newer_than_unicode_9(uint32_t c) {
  const auto* range = std::lower_bound(kNewerThanUnicode9.begin(), kNewerThanUnicode9.end(), c,
                                       [](const CodeRange& r, uint32_t at) { return r.last < at; });
  return range != kNewerThanUnicode9.end() && range->first <= c;
}

int combining_class(int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Characters that are normalised together.
class Run {
 public:
  // Adds the parts of a character.
  void add(uint32_t c) {
    constexpr int kMaxParts = 8;
    int32_t parts[kMaxParts];
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<int32_t>(c), parts, kMaxParts, kOptions, &boundary);
    check(count <= kMaxParts ? count : UTF8PROC_ERROR_OVERFLOW);
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      if (combining_class(parts[i]) == 0) {
        order_marks();
        marks_begin_ = chars_.size() + 1;
      }
      chars_.push_back(parts[i]);
    }
  }

  // Appends what has been added, composed, and begins anew.
  void finish(std::string& text) {
    order_marks();
    const auto length = utf8proc_normalize_utf32(
        chars_.data(), static_cast<utf8proc_ssize_t>(chars_.size()), kOptions);
    check(length);
    for (utf8proc_ssize_t i = 0; i < length; ++i) {
      formats::append_utf8(text, static_cast<uint32_t>(chars_[i]));
    }
    chars_.clear();
    marks_begin_ = 0;
  }

 private:
  static constexpr auto kOptions =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

  static void check(utf8proc_ssize_t result) {
    if (result >= 0) return;
    throw Error(ErrorCode::kInternal, std::string("utf8proc: ") + utf8proc_errmsg(result));
  }

  // Puts the last marks in canonical order. utf8proc's own sort takes quadratic time.
  void order_marks() {
    const auto begin =
        chars_.begin() + static_cast<ptrdiff_t>(std::min(marks_begin_, chars_.size()));
    const auto before = [](int32_t a, int32_t b) {
      return combining_class(a) < combining_class(b);
    };
    if (!std::is_sorted(begin, chars_.end(), before)) std::stable_sort(begin, chars_.end(), before);
  }

  std::vector<int32_t> chars_;
  size_t marks_begin_ = 0;
};

// What `stands_alone` stays as it is, and nothing is composed across it.
template <class StandsAlone>
std::string compose(std::string_view text, StandsAlone stands_alone) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<int8_t>(c) >= 0; })) {
    return std::string(text);
  }
  std::string composed;
  composed.reserve(text.size());
  Run run;
  for (size_t at = 0; at < text.size();) {
    const formats::Utf8Char c = formats::decode_utf8(text, at);
    at += c.length;
    if (stands_alone(c.code_point)) {
      run.finish(composed);
      formats::append_utf8(composed, c.code_point);
    } else {
      run.add(c.code_point);
    }
  }
  run.finish(composed);
  return composed;
}

}  // namespace

size_t invalid_utf8_length(std::string_view text, size_t at) {
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

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t bad = formats::find_invalid_utf8(text);
    valid += text.substr(0, bad);
    if (bad == std::string_view::npos) break;
    valid += kReplacement;
    text.remove_prefix(bad + invalid_utf8_length(text, bad));
  }
  return valid;
}

std::string to_nfc(std::string_view text) {
  return compose(
      text, [](uint32_t c) { return is_before_final_consonants(c) || is_newer_than_unicode_9(c); });
}

std::string to_newest_nfc(std::string_view text) {
  return compose(text, is_before_final_consonants);
}

size_t grapheme_length(std::string_view text) {
  // Marks that Unicode 16.0 and 17.0 added are as those that utf8proc knows.
  const auto known = [](uint32_t c) {
    constexpr int32_t kMark = 0x300;
    const bool is_newer =
        c == 0x897 || (c >= 0x1ACF && c <= 0x1ADD) || (c >= 0x1AE0 && c <= 0x1AEB);
    return is_newer ? kMark : static_cast<int32_t>(c);
  };
  formats::Utf8Char c = formats::decode_utf8(text, 0);
  size_t length = c.length;
  int32_t state = 0;
  while (length < text.size()) {
    const formats::Utf8Char next = formats::decode_utf8(text, length);
    if (utf8proc_grapheme_break_stateful(known(c.code_point), known(next.code_point), &state))
      break;
    c = next;
    length += c.length;
  }
  return length;
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
