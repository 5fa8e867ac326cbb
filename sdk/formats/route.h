// Which paths of requests a pattern takes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

// "/v1/jobs/{id}/events": a brace holds one part of a path, which is not empty.
class RoutePattern {
 public:
  // Throws ParseError ROUTE: it does not begin with a slash, or has a brace that is not a whole
  // part, is empty, or has the name of another.
  explicit RoutePattern(std::string_view pattern);

  // What stands in the braces of a path that is decoded; nullopt: the pattern does not take it.
  std::optional<std::map<std::string, std::string, std::less<>>> match(std::string_view path) const;
  // Whether there is a path that both take.
  bool meets(const RoutePattern& other) const;
  const std::string& text() const { return text_; }

 private:
  struct Part {
    std::string text;  // the name, of a brace
    bool is_brace = false;
  };

  std::string text_;
  std::vector<Part> parts_;
};

}  // namespace atelier::formats
