#include "formats/route.h"

#include <algorithm>

#include "formats/escape.h"

namespace atelier::formats {

namespace {

// What stands between the slashes of a path that begins with one: "/a/" has "a" and "".
std::vector<std::string_view> split(std::string_view path) {
  std::vector<std::string_view> parts;
  for (size_t begin = 1; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

RoutePattern::RoutePattern(std::string_view pattern) : text_(pattern) {
  const auto fail = [&](const char* what) {
    throw ParseError("ROUTE", "the pattern " + quote_and_escape(pattern) + " " + what);
  };
  if (!pattern.starts_with('/')) fail("does not begin with a slash");
  for (const std::string_view part : split(pattern)) {
    const bool is_brace = part.size() > 2 && part.starts_with('{') && part.ends_with('}');
    const std::string_view text = is_brace ? part.substr(1, part.size() - 2) : part;
    if (text.find_first_of("{}") != std::string_view::npos)
      fail("has a brace that is no whole part with a name");
    if (is_brace && std::any_of(parts_.begin(), parts_.end(), [&](const Part& other) {
          return other.is_brace && other.text == text;
        }))
      fail("has two braces of one name");
    parts_.push_back({.text = std::string(text), .is_brace = is_brace});
  }
}

std::optional<std::map<std::string, std::string, std::less<>>> RoutePattern::match(
    std::string_view path) const {
  if (!path.starts_with('/')) return std::nullopt;
  const std::vector<std::string_view> found = split(path);
  if (found.size() != parts_.size()) return std::nullopt;
  std::map<std::string, std::string, std::less<>> values;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].is_brace ? found[i].empty() : found[i] != parts_[i].text) return std::nullopt;
    if (parts_[i].is_brace) values.emplace(parts_[i].text, found[i]);
  }
  return values;
}

bool RoutePattern::meets(const RoutePattern& other) const {
  const auto do_meet = [](const Part& a, const Part& b) {
    if (a.is_brace && b.is_brace) return true;
    if (a.is_brace || b.is_brace) return !(a.is_brace ? b : a).text.empty();
    return a.text == b.text;
  };
  return std::equal(parts_.begin(), parts_.end(), other.parts_.begin(), other.parts_.end(),
                    do_meet);
}

}  // namespace atelier::formats
