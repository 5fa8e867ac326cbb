#include "host/report/error_line.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/escape.h"
#include "formats/utf8.h"

namespace atelier::report {

namespace {

constexpr size_t kMostOfFirst = 400, kMostOfLine = 2000;  // bytes
constexpr size_t kEndOfLine = 600;  // of these, bytes at the end, where the reason and the hint are

// Where a character of `text` begins: at `place`, or before it.
size_t begin_of_character(std::string_view text, size_t place) {
  while (place > 0 && (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80) --place;
  return place;
}

// The beginning of `line`, "…" and at most `end` bytes of its end, together `most` bytes at most.
std::string cut_line(std::string_view line, size_t most, size_t end) {
  if (line.size() <= most) return std::string(line);
  std::string out(line.substr(0, begin_of_character(line, most - 3 - end)));
  out += "…";
  size_t rest = line.size() - end;
  while (rest < line.size() && begin_of_character(line, rest) != rest) ++rest;
  return out.append(line.substr(rest));
}

// Each line of `text` cut. It begins with a line end, or is empty.
std::string cut_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n', 1), text.size());
    out += cut_line(text.substr(0, end), kMostOfLine, kEndOfLine);
    text.remove_prefix(end);
  }
  return out;
}

}  // namespace

std::string error_line(const Error& error, std::string_view label) {
  const std::string message = printable(error.message());
  const size_t end = std::min(message.find('\n'), message.size());
  const std::string tag =
      " [" + (error.tag().empty() ? std::string(to_string(error.code())) : error.tag()) + "]";
  const std::string begin = std::string(label) + ": ";
  std::string line = begin + message.substr(0, end);
  if (!error.hint().empty()) line += "; " + printable(error.hint());
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::string rest = message.substr(end);
  if (line.size() + tag.size() > kMostOfFirst) {
    rest = "\n  " + line.substr(begin.size()) + rest;
    line = cut_line(line, kMostOfFirst - tag.size(), /*end=*/0);
  }
  return line + tag + cut_lines(rest) + "\n";
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::string printable_json(std::string_view json) {
  std::string out;
  for (size_t at = 0; at < json.size();) {
    const formats::Utf8Char next = formats::decode_utf8(json, at);
    const std::string character(json.substr(at, next.length));
    at += next.length;
    if (next.code_point < 0x7F || printable(character) == character) {
      out += character;
    } else {
      const std::string quoted = nlohmann::json(character).dump(-1, ' ', /*ensure_ascii=*/true);
      out.append(quoted, 1, quoted.size() - 2);
    }
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\"\\\n\t"), text.size());
    const std::string quoted =
        formats::quote_and_escape(text.substr(0, end), /*max_chars=*/std::string::npos);
    out.append(quoted, 1, quoted.size() - 2).append(text.substr(end, 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace atelier::report
