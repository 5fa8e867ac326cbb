#include "text/html_entities.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "text/repair_tables.h"

namespace atelier::text {
namespace {

using View = std::u32string_view;
using Text = std::u32string;

bool is_digit(char32_t c) {
  return c >= '0' && c <= '9';
}
bool is_hex_digit(char32_t c) {
  return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}
bool is_alphanumeric(char32_t c) {
  return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
}

// Names of HTML, with the semicolon where they need one.
class Names {
 public:
  explicit Names(std::string_view table) {
    for (size_t at = 0; at < table.size();) {
      const size_t middle = table.find_first_of("=!", at), end = table.find(' ', middle);
      std::string name(table.substr(at, middle - at));
      const Text text = characters(table.substr(middle + 1, end - middle - 1));
      if (table[middle] == '!') texts_[name] = text;
      texts_[name + ';'] = text;
      at = end + 1;
    }
  }

  const Text* find(View name) const {
    std::string key;
    for (const char32_t c : name) {
      if (c >= 0x80) return nullptr;
      key += static_cast<char>(c);
    }
    const auto found = texts_.find(key);
    return found == texts_.end() ? nullptr : &found->second;
  }

 private:
  // "22D5,FE00"
  static Text characters(std::string_view numbers) {
    Text text(1, 0);
    for (const char c : numbers) {
      if (c == ',') {
        text += U'\0';
      } else {
        text.back() = text.back() * 16 + static_cast<char32_t>(c <= '9' ? c - '0' : c - 'A' + 10);
      }
    }
    return text;
  }

  std::unordered_map<std::string, Text> texts_;
};

const Names& names() {
  static const Names names(repair::kEntities);
  return names;
}
const Names& upper_names() {
  static const Names names(repair::kUpperEntities);
  return names;
}

// The character of a number.
Text character(char32_t number) {
  if (number == 0 || (number >= 0xD800 && number <= 0xDFFF) || number > 0x10FFFF) return U"\uFFFD";
  if (number >= 0x80 && number <= 0x9F) {
    const char16_t assigned = repair::kWindows1252[number - 0x80];
    return Text(1, assigned != 0 ? assigned : number);
  }
  const bool is_none = number < 0x09 || number == 0x0B || (number >= 0x0E && number < 0x20) ||
                       number == 0x7F || (number >= 0xFDD0 && number <= 0xFDEF) ||
                       (number & 0xFFFE) == 0xFFFE;
  return is_none ? Text() : Text(1, number);
}

struct Reference {
  size_t length;  // in the text
  Text text;
};

// At "&#".
std::optional<Reference> numeric_reference(View text) {
  const bool is_hex = text.size() > 2 && (text[2] | 0x20) == 'x';
  const size_t begin = is_hex ? 3 : 2;
  const char32_t base = is_hex ? 16 : 10;
  char32_t number = 0;
  size_t end = begin;
  for (; end < text.size() && (is_hex ? is_hex_digit(text[end]) : is_digit(text[end])); ++end) {
    const char32_t digit = is_digit(text[end]) ? text[end] - '0' : (text[end] | 0x20) - 'a' + 10;
    number = std::min<char32_t>(number * base + digit, 0x110000);
  }
  if (end == begin) return std::nullopt;
  if (end < text.size() && text[end] == ';') ++end;
  return Reference{end, character(number)};
}

// At '&' and a name: the longest that is known.
std::optional<Reference> named_reference(View text) {
  constexpr size_t kLongest = 32;
  size_t end = 1;
  while (end < text.size() && end <= kLongest && View(U"\t\n\f <&#;").find(text[end]) == View::npos)
    ++end;
  if (end == 1) return std::nullopt;
  const bool has_end = end < text.size() && text[end] == ';';
  const View name = text.substr(1, end - 1 + (has_end ? 1 : 0));
  if (const Text* found = names().find(name)) return Reference{name.size() + 1, *found};
  for (size_t length = name.size() - 1; length > 1; --length) {
    if (const Text* found = names().find(name.substr(0, length))) {
      return Reference{name.size() + 1, *found + Text(name.substr(length))};
    }
  }
  // It is passed over whole: another '&' is not part of it.
  return Reference{name.size() + 1, Text(text.substr(0, name.size() + 1))};
}

// With a semicolon, at '&'.
std::optional<Reference> plain_reference(View text) {
  constexpr size_t kLongest = 24;
  const size_t begin = text.size() > 1 && text[1] == '#' ? 2 : 1;
  size_t end = begin;
  while (end < text.size() && is_alphanumeric(text[end])) ++end;
  if (end == begin || end - begin > kLongest || end == text.size() || text[end] != ';')
    return std::nullopt;
  const View name = text.substr(1, end);
  if (begin == 2) {
    const Text all = unescape_all(text.substr(0, end + 1));
    if (all.find(U';') != Text::npos) return std::nullopt;
    return Reference{end + 1, all};
  }
  const Text* found = names().find(name);
  if (found == nullptr) found = upper_names().find(name);
  if (found == nullptr) return std::nullopt;
  return Reference{end + 1, *found};
}

template <class ReferenceAt>
Text unescape(View text, ReferenceAt reference_at) {
  Text result;
  for (size_t at = 0; at < text.size();) {
    std::optional<Reference> reference;
    if (text[at] == '&') reference = reference_at(text.substr(at));
    if (reference) {
      result += reference->text;
      at += reference->length;
    } else {
      result += text[at++];
    }
  }
  return result;
}

}  // namespace

Text unescape_all(View text) {
  return unescape(text, [](View rest) {
    return rest.size() > 1 && rest[1] == '#' ? numeric_reference(rest) : named_reference(rest);
  });
}

Text unescape_plain_entities(View text) {
  return unescape(text, plain_reference);
}

}  // namespace atelier::text
