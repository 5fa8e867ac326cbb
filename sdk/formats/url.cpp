#include "formats/url.h"

#include <algorithm>

#include "formats/escape.h"
#include "formats/utf8.h"

namespace atelier::formats {

namespace {

constexpr size_t kMaxQueryNames = 100;

// -1: it is none.
int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void check_path(std::string_view path) {
  const auto fail = [&](const char* what) {
    throw ParseError("URL_TARGET", "the path " + quote_and_escape(path) + " " + what);
  };
  if (path.find('\\') != std::string_view::npos) fail("holds a backslash");
  for (size_t begin = 1; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part == "." || part == "..") fail("has \".\" or \"..\" in the place of a name");
    begin = end + 1;
  }
}

}  // namespace

std::string decode_percent(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0)
      throw ParseError("URL_PERCENT",
                       quote_and_escape(text) + " has a % without two digits behind it",
                       "write %25 for the sign itself", i);
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  if (find_invalid_utf8(decoded) != std::string_view::npos)
    throw ParseError("URL_TEXT", quote_and_escape(text) + " is not UTF-8");
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(decoded.begin(), decoded.end(), is_control))
    throw ParseError("URL_TEXT", quote_and_escape(text) + " holds a control character");
  return decoded;
}

std::map<std::string, std::string, std::less<>> parse_query(std::string_view text) {
  std::map<std::string, std::string, std::less<>> query;
  const auto decode = [](std::string_view part) {
    std::string spaced(part);
    std::replace(spaced.begin(), spaced.end(), '+', ' ');
    return decode_percent(spaced);
  };
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    std::string name = decode(pair.substr(0, equals));
    std::string value = decode(pair.substr(std::min(equals + 1, pair.size())));
    if (query.contains(name))
      throw ParseError("URL_QUERY", quote_and_escape(name) + " stands twice in the query");
    if (query.size() == kMaxQueryNames)
      throw ParseError("URL_QUERY", "the query has more than 100 names");
    query.emplace(std::move(name), std::move(value));
  }
  return query;
}

RequestTarget parse_request_target(std::string_view text) {
  if (!text.starts_with('/'))
    throw ParseError("URL_TARGET", quote_and_escape(text) + " is no path that begins with a slash");
  if (text.find('#') != std::string_view::npos)
    throw ParseError("URL_TARGET", quote_and_escape(text) + " has a fragment");
  const size_t question = std::min(text.find('?'), text.size());
  const std::string_view path = text.substr(0, question);
  RequestTarget target{.path = decode_percent(path)};
  if (std::count(path.begin(), path.end(), '/') !=
      std::count(target.path.begin(), target.path.end(), '/'))
    throw ParseError("URL_TARGET", "the path " + quote_and_escape(path) + " has an encoded slash");
  check_path(target.path);
  target.query = parse_query(text.substr(std::min(question + 1, text.size())));
  return target;
}

}  // namespace atelier::formats
