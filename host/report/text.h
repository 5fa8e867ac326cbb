// Numbers as text, and back.
#pragma once

#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace atelier::report {

// As printf, at most 239 characters.
std::string print(const char* format, auto... values) {
  char text[240];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// The shortest digits that give this number again.
template <typename T>
std::string number_text(T value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// nullopt when the whole text is no such number.
template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

}  // namespace atelier::report
