// What a request asks for, and how its paths and queries are written.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "formats/parse_error.h"

namespace atelier::formats {

// "a%20b" as "a b". Throws ParseError: URL_PERCENT where two hexadecimal digits are missing,
// URL_TEXT where what comes out is no UTF-8 or holds a control character.
std::string decode_percent(std::string_view text);

// "a=1&b=x+y" by names; a name without "=" has "". Throws ParseError as decode_percent(), and
// URL_QUERY where a name stands twice or there are more than 100.
std::map<std::string, std::string, std::less<>> parse_query(std::string_view text);

struct RequestTarget {
  std::string path;  // decoded; begins with a slash
  std::map<std::string, std::string, std::less<>> query = {};
};

// "/v1/jobs?after=3" of a request's first line. Throws ParseError as parse_query(), and URL_TARGET
// where it does not begin with a slash, has a fragment, an encoded slash, a backslash, or "." or
// ".." in the place of a name.
RequestTarget parse_request_target(std::string_view text);

}  // namespace atelier::formats
