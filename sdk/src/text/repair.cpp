#include "atelier/text/repair.h"

#include <algorithm>
#include <optional>
#include <utf8proc.h>

#include "formats/utf8.h"
#include "text/html_entities.h"
#include "text/repair_tables.h"
#include "text/unicode.h"

// Code points, so that a character is a place: bytes too are one element each here.
namespace atelier::text {
namespace {

using repair::Encoding, repair::Sequence;
using View = std::u32string_view;
using Text = std::u32string;
using Sequences = std::span<const Sequence>;

constexpr char32_t kReplacementPoint = 0xFFFD, kSubstitute = 0x1A;

bool is_surrogate(char32_t c) {
  return c >= 0xD800 && c <= 0xDFFF;
}

// Surrogates that were encoded on their own are kept, for fix_surrogates().
Text decode(std::string_view text) {
  const auto follows = [&](size_t at, uint8_t low) {
    return at < text.size() && static_cast<uint8_t>(text[at]) >= low &&
           static_cast<uint8_t>(text[at]) <= 0xBF;
  };
  std::string valid;
  Text result;
  for (size_t at = 0; at < text.size();) {
    const formats::Utf8Char c = formats::decode_utf8(text, at);
    if (c.valid) {
      result += c.code_point;
      at += c.length;
    } else if (text[at] == '\xED' && follows(at + 1, 0xA0) && follows(at + 2, 0x80)) {
      result += 0xD000 | (text[at + 1] & 0x3F) << 6 | (text[at + 2] & 0x3F);
      at += 3;
    } else {
      result += kReplacementPoint;
      at += invalid_utf8_length(text, at);
    }
  }
  return result;
}

std::string encode(View text) {
  std::string result;
  for (const char32_t c : text) formats::append_utf8(result, c);
  return result;
}

// ---- Patterns ----

bool is_word(char32_t c) {
  if (c == '_') return true;
  switch (utf8proc_category(static_cast<int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

bool holds(uint8_t set, char32_t c) {
  if (set == repair::kWord) return is_word(c);
  const auto ranges = repair::kRanges.subspan(
      repair::kSetStarts[set], repair::kSetStarts[set + 1] - repair::kSetStarts[set]);
  const auto range =
      std::lower_bound(ranges.begin(), ranges.end(), c,
                       [](const repair::CharRange& r, char32_t at) { return r.last < at; });
  return range != ranges.end() && range->first <= c;
}

bool matches(const Sequence& sequence, View text, size_t at) {
  if ((sequence.at_start && at > 0) || text.size() - at < sequence.count) return false;
  for (size_t i = 0; i < sequence.count; ++i) {
    if (!holds(sequence.sets[i], text[at + i])) return false;
  }
  return true;
}

// The length of the first sequence that matches at `at`; 0: none does.
size_t match_length(Sequences sequences, View text, size_t at) {
  for (const Sequence& sequence : sequences) {
    if (matches(sequence, text, at)) return sequence.count;
  }
  return 0;
}

// Replaces what `length_at` finds by what `replacement` makes of it.
template <class LengthAt, class Replacement>
Text replaced(View text, LengthAt length_at, Replacement replacement) {
  Text result;
  for (size_t at = 0; at < text.size();) {
    const size_t length = length_at(at);
    if (length > 0) {
      result += replacement(text.substr(at, length));
    } else {
      result += text[at];
    }
    at += std::max<size_t>(1, length);
  }
  return result;
}

bool is_in(Sequences sequences, View text) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (match_length(sequences, text, at) > 0) return true;
  }
  return false;
}

bool is_bad(View text) {
  return is_in(repair::kBad, text);
}

// ---- UTF-8 that was read as an encoding of one byte a character ----

// The bytes that `text` was read from; nothing when it cannot have been.
std::optional<Text> bytes_in(const Encoding& encoding, View text) {
  Text bytes;
  for (const char32_t c : text) {
    if (c == encoding.substitute) {
      bytes += kSubstitute;
    } else if (c < 0x80 && c != kSubstitute) {
      bytes += c;
    } else {
      const auto found = std::find(encoding.high.begin(), encoding.high.end(), c);
      if (found == encoding.high.end()) return std::nullopt;
      bytes += static_cast<char32_t>(0x80 + (found - encoding.high.begin()));
    }
  }
  return bytes;
}

// Puts back the byte A0 where it became a space inside a character.
Text restore_no_break_spaces(View bytes) {
  const auto is_a_grave = [&](size_t at) -> size_t {  // a word of its own, as in "à la"
    if (bytes.substr(at, 2) != U"\xC3 ") return 0;
    const View rest = bytes.substr(at + 2);
    const auto begins = [&](View word) { return rest.starts_with(word); };
    return begins(U" ") || begins(U"quele") || begins(U"quela") || begins(U"quilo") || begins(U"s ")
               ? 0
               : 2;
  };
  const Text words = replaced(bytes, is_a_grave, [](View) { return Text(U"\xC3\xA0 "); });
  return replaced(
      words, [&](size_t at) { return match_length(repair::kAlteredUtf8, words, at); },
      [](View found) {
        Text result(found);
        std::replace(result.begin(), result.end(), U' ', U'\xA0');
        return result;
      });
}

Text replace_lossy(View bytes) {
  return replaced(
      bytes, [&](size_t at) { return match_length(repair::kLossyUtf8, bytes, at); },
      [](View) { return Text(U"\xEF\xBF\xBD"); });
}

// UTF-8 with two variants: pairs of surrogates, and 0 as C0 80. Where either is cut off by the
// line break at the end, that is taken for its last byte.
std::optional<Text> decode_variants(View bytes) {
  std::string narrow;
  for (const char32_t byte : bytes) narrow += static_cast<char>(byte);
  const auto is_byte = [&](size_t at, char32_t low, char32_t high) {
    return at < bytes.size() && bytes[at] >= low && bytes[at] <= high;
  };
  const auto is_last = [&](size_t at) {
    return is_byte(at, 0x80, 0xBF) || (at + 1 == bytes.size() && bytes[at] == '\n');
  };
  Text result;
  for (size_t at = 0; at < bytes.size();) {
    const formats::Utf8Char c = formats::decode_utf8(narrow, at);
    if (c.valid) {
      result += c.code_point;
      at += c.length;
    } else if (bytes[at] == 0xC0 &&
               (is_byte(at + 1, 0x80, 0x80) || (at + 2 == bytes.size() && bytes[at + 1] == '\n'))) {
      result += U'\0';
      at += 2;
    } else if (bytes[at] == 0xED && is_byte(at + 1, 0xA0, 0xAF) && is_byte(at + 2, 0x80, 0xBF) &&
               is_byte(at + 3, 0xED, 0xED) && is_byte(at + 4, 0xB0, 0xBF) && is_last(at + 5)) {
      result += 0x10000 + ((bytes[at + 1] & 0x0F) << 16) + ((bytes[at + 2] & 0x3F) << 10) +
                ((bytes[at + 4] & 0x0F) << 6) + (bytes[at + 5] & 0x3F);
      at += 6;
    } else {
      return std::nullopt;
    }
  }
  return result;
}

// The length of one or more characters of UTF-8 that were read one byte a character.
size_t clue_length(View text, size_t at) {
  if (at > 0 && match_length(repair::kUtf8Before, text, at - 1) > 0) return 0;
  size_t length = 0;
  while (const size_t more = match_length(repair::kUtf8Clues, text, at + length)) length += more;
  return length;
}

Text fix_c1_controls(View text) {
  Text result(text);
  for (char32_t& c : result) {
    if (c < 0x80 || c > 0x9F) continue;
    const char16_t assigned = repair::kWindows1252[c - 0x80];
    if (assigned != 0) c = assigned;
  }
  return result;
}

Text fix_encoding(Text text);

Text fix_inconsistent(View text) {
  return replaced(
      text, [&](size_t at) { return clue_length(text, at); },
      [&](View found) {
        return found.size() < text.size() && is_bad(found) ? fix_encoding(Text(found))
                                                           : Text(found);
      });
}

// What `text` is when all of it was read in one wrong encoding.
std::optional<Text> fix_whole(View text) {
  constexpr char16_t kMacRomanPi = 0x03C0;  // in that encoding a space behind a dash is common
  for (const Encoding& encoding : repair::kEncodings) {
    std::optional<Text> bytes = bytes_in(encoding, text);
    if (!bytes) continue;
    const bool is_mac_roman = encoding.high[0xB9 - 0x80] == kMacRomanPi;
    if (!is_mac_roman && is_in(repair::kAlteredUtf8, *bytes))
      bytes = restore_no_break_spaces(*bytes);
    if (encoding.substitute == kReplacementPoint) bytes = replace_lossy(*bytes);
    if (std::optional<Text> fixed = decode_variants(*bytes)) return fixed;
  }
  return std::nullopt;
}

Text fix_encoding_once(View text) {
  const auto is_ascii = [](char32_t c) { return c < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii) || !is_bad(text)) return Text(text);
  if (std::optional<Text> fixed = fix_whole(text)) return *fixed;
  Text fixed = fix_inconsistent(text);
  if (fixed != text) return fixed;
  // Latin-1 with control characters was Windows-1252; where that has none of these, the others are
  // replaced all the same.
  return fix_c1_controls(text);
}

Text fix_encoding(Text text) {
  while (true) {
    Text fixed = fix_encoding_once(text);
    if (fixed == text) return fixed;
    text = std::move(fixed);
  }
}

// ---- Characters ----

struct Ligature {
  char32_t letter;
  View letters;
};
constexpr Ligature kLigatures[] = {
    {0x132, U"IJ"},       {0x133, U"ij"},  {0x149, U"'n"},      {0x1F1, U"DZ"},
    {0x1F2, U"Dz"},       {0x1F3, U"dz"},  {0x1C4, U"D\u017D"}, {0x1C5, U"D\u017E"},
    {0x1C6, U"d\u017E"},  {0x1C7, U"LJ"},  {0x1C8, U"Lj"},      {0x1C9, U"lj"},
    {0x1CA, U"NJ"},       {0x1CB, U"Nj"},  {0x1CC, U"nj"},      {0xFB00, U"ff"},
    {0xFB01, U"fi"},      {0xFB02, U"fl"}, {0xFB03, U"ffi"},    {0xFB04, U"ffl"},
    {0xFB05, U"\u017Ft"}, {0xFB06, U"st"},
};

// What a character is without ligatures, widths and curls.
Text plain(char32_t c) {
  constexpr char32_t kFirstWide = 0xFF01;
  for (const auto& [letter, letters] : kLigatures) {
    if (c == letter) return Text(letters);
  }
  if (c == 0x3000) return U" ";
  if (c >= kFirstWide && c - kFirstWide < repair::kPlainWidths.size()) {
    const char16_t width = repair::kPlainWidths[c - kFirstWide];
    return width != 0 ? Text(1, width) : U" \u0304";
  }
  if (c == 0x2BC || (c >= 0x2018 && c <= 0x201B)) return U"'";
  if (c >= 0x201C && c <= 0x201F) return U"\"";
  return Text(1, c);
}

Text fix_line_breaks(View text) {
  Text result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    if (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    const bool is_break = c == '\r' || c == 0x2028 || c == 0x2029 || c == 0x85;
    result += is_break ? U'\n' : c;
  }
  return result;
}

Text fix_surrogates(View text) {
  Text result;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i], next = i + 1 < text.size() ? text[i + 1] : 0;
    const bool is_pair = c >= 0xD800 && c < 0xDC00 && next >= 0xDC00 && next <= 0xDFFF;
    if (is_pair) {
      result += 0x10000 + ((c - 0xD800) << 10) + (next - 0xDC00);
      ++i;
    } else {
      result += is_surrogate(c) ? kReplacementPoint : c;
    }
  }
  return result;
}

// What colours text in terminals: ESC [ numbers letter.
Text remove_terminal_escapes(View text) {
  const auto length_at = [&](size_t at) -> size_t {
    if (text.substr(at, 2) != U"\x1B[") return 0;
    size_t end = at + 2;
    const auto is_number = [](char32_t c) {
      return c == ';' || utf8proc_category(static_cast<int32_t>(c)) == UTF8PROC_CATEGORY_ND;
    };
    while (end < text.size() && is_number(text[end])) ++end;
    const char32_t letter = end < text.size() ? text[end] | 0x20 : 0;
    return letter >= 'a' && letter <= 'z' ? end + 1 - at : 0;
  };
  return replaced(text, length_at, [](View) { return Text(); });
}

bool is_control(char32_t c) {
  return c < 0x09 || c == 0x0B || (c >= 0x0E && c < 0x20) || c == 0x7F ||
         (c >= 0x206A && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC);
}

Text fix_line(Text text, bool unescapes) {
  while (true) {
    const Text before = text;
    if (unescapes) text = unescape_plain_entities(text);
    text = fix_c1_controls(fix_encoding(std::move(text)));
    text = replaced(
        text, [](size_t) -> size_t { return 1; }, [](View c) { return plain(c.front()); });
    text = remove_terminal_escapes(fix_surrogates(fix_line_breaks(text)));
    std::erase_if(text, is_control);
    text = decode(to_newest_nfc(encode(text)));
    if (text == before) return text;
  }
}

}  // namespace

std::string fix_text(std::string_view text) {
  constexpr size_t kLongest = 1'000'000;
  const Text all = decode(text);
  Text result;
  bool unescapes = true;
  for (size_t at = 0; at < all.size();) {
    const size_t line_break = all.find(U'\n', at);
    const size_t end =
        std::min(line_break == Text::npos ? all.size() : line_break + 1, at + kLongest);
    Text line = all.substr(at, end - at);
    // A text with tags is HTML, in which entities are meant.
    if (line.find(U'<') != Text::npos) unescapes = false;
    result += fix_line(std::move(line), unescapes);
    at = end;
  }
  return encode(result);
}

std::string unescape_html(std::string_view text) {
  return encode(unescape_all(decode(text)));
}

std::string collapse_spaces(std::string_view text) {
  const Text all = decode(text);
  Text result;
  bool is_behind_space = false;
  for (const char32_t c : all) {
    if (match_length(repair::kSpace, View(&c, 1), 0) > 0) {
      is_behind_space = !result.empty();
      continue;
    }
    if (is_behind_space) result += U' ';
    is_behind_space = false;
    result += c;
  }
  return encode(result);
}

}  // namespace atelier::text
