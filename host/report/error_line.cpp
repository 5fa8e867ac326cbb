#include "host/report/error_line.h"

namespace atelier::report {

namespace {

constexpr size_t kMaxBytes = 400;

}  // namespace

std::string error_line(const Error& error, std::string_view label) {
  const std::string& message = error.message();
  const size_t end = std::min(message.find('\n'), message.size());
  const std::string tag =
      " [" + (error.tag().empty() ? std::string(to_string(error.code())) : error.tag()) + "]";
  const std::string begin = std::string(label) + ": ";
  std::string line = begin + message.substr(0, end);
  if (!error.hint().empty()) line += "; " + error.hint();
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::string rest = message.substr(end);
  if (line.size() + tag.size() > kMaxBytes) {
    rest = "\n  " + line.substr(begin.size()) + rest;
    size_t cut = kMaxBytes - tag.size() - 3;
    while (cut > 0 && (static_cast<unsigned char>(line[cut]) & 0xC0) == 0x80)
      --cut;  // not inside a character
    line = line.substr(0, cut) + "…";
  }
  return line + tag + rest + "\n";
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace atelier::report
