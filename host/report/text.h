// Numbers, sizes and times as text, and numbers back.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace atelier::report {

// As printf, at most 239 characters.
[[gnu::format(printf, 1, 2)]] std::string print(const char* format, ...);

// The shortest digits that give this number again.
template <typename T>
std::string number_text(T value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// "1.50 GiB", "12 bytes"; what is less than nothing is nothing.
std::string bytes_text(int64_t bytes);
// "12.5 ms", "3.2 h".
std::string time_text(double seconds);
// The size of an image as users write it: "640x480", the width first.
std::string size_text(int64_t height, int64_t width);
// Columns as wide as their longest cell; those whose heading begins with '>' are flush right.
std::string columns(std::vector<std::vector<std::string>> rows);

// nullopt when the whole text is no such number.
template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

}  // namespace atelier::report
