// Values of HTTP's header fields.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "formats/parse_error.h"

namespace atelier::formats {

using HttpParameters = std::map<std::string, std::string, std::less<>>;

// `text/html; charset="utf-8"`, and any other field that has a word and parameters.
struct MediaType {
  std::string type;                // in lower case
  HttpParameters parameters = {};  // by names in lower case; values as they were written
};

// Throws ParseError: HTTP_FIELD where it is malformed or has a parameter twice.
MediaType parse_media_type(std::string_view text);

// With the letters A to Z in lower case, whatever the locale.
std::string lower_case(std::string_view text);

// Whether it is a name as HTTP has them for fields and methods, such as "X-Name".
bool is_http_token(std::string_view text);

// Bytes of a file from `begin` to before `end`.
struct ByteRange {
  uint64_t begin = 0, end = 0;
};

// What "Range" asks for of a file of `size` bytes. nullopt: the whole, also where it is malformed,
// of another unit or of several ranges, which may all be left aside.
//
// Throws ParseError HTTP_RANGE where the range lies outside the file.
std::optional<ByteRange> parse_byte_range(std::string_view text, uint64_t size);

// The host and the port of "Host" and of origins.
struct Authority {
  std::string host;                   // in lower case; an IPv6 address without its brackets
  std::optional<uint16_t> port = {};  // nullopt: that of the scheme
  bool operator==(const Authority&) const = default;
};

// nullopt: it is none; names have letters, digits, hyphens, underscores and dots alone.
std::optional<Authority> parse_authority(std::string_view text);

// The origin of a page, as browsers send it: "http://localhost:3000".
struct WebOrigin {
  std::string scheme;  // in lower case
  Authority authority;
  bool operator==(const WebOrigin&) const = default;
};

// nullopt: it is none, as "null" is, or is followed by a path.
std::optional<WebOrigin> parse_origin(std::string_view text);

}  // namespace atelier::formats
