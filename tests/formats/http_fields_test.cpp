#include "formats/http_fields.h"

#include <catch2/catch.hpp>
#include <string>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

std::string tag_of_type(std::string_view text) {
  return error_of([&] { parse_media_type(text); }).tag;
}

// "0-4" for bytes 0 to 3, "whole", or "outside".
std::string range_of(std::string_view text, uint64_t size) {
  try {
    const auto range = parse_byte_range(text, size);
    return range ? std::to_string(range->begin) + "-" + std::to_string(range->end) : "whole";
  } catch (const ParseError& error) {
    CHECK(error.tag == "HTTP_RANGE");
    return "outside";
  }
}

std::string authority_of(std::string_view text) {
  const auto read = parse_authority(text);
  if (!read) return "none";
  return read->host + (read->port ? " " + std::to_string(*read->port) : "");
}

}  // namespace

TEST_CASE("A media type is read with its parameters", "[http]") {
  const MediaType type =
      parse_media_type(" Text/HTML ; Charset=\"a \\\"b\\\" c:\\d\" ;boundary=x-y;");
  CHECK(type.type == "text/html");
  CHECK(type.parameters == HttpParameters{{"charset", "a \"b\" c:\\d"}, {"boundary", "x-y"}});
  CHECK(parse_media_type("form-data; name=\"权\"").parameters.at("name") == "权");
  for (const char* bad : {"", ";", "a/b c", "a; =x", "a; b", "a; b=", "a; b=\"x", "a; b=1; B=2",
                          "a; b=\"x\" y", "a\r\nb", "a; b=\"\x01\"", "a; b=\"\xff\""}) {
    INFO(bad);
    CHECK(tag_of_type(bad) == "HTTP_FIELD");
  }
  CHECK(tag_of_type(std::string_view("a; b=\"\0\"", 8)) == "HTTP_FIELD");
}

TEST_CASE("A range is one of bytes that the file has, or is left aside", "[http]") {
  CHECK(range_of("bytes=0-3", 10) == "0-4");
  CHECK(range_of("bytes=4-", 10) == "4-10");
  CHECK(range_of("bytes=-3", 10) == "7-10");
  CHECK(range_of("bytes=-30", 10) == "0-10");
  CHECK(range_of("bytes=9-99", 10) == "9-10");
  CHECK(range_of("bytes=0-18446744073709551615", 10) == "0-10");
  for (const char* outside :
       {"bytes=10-", "bytes=10-12", "bytes=-0", "bytes=18446744073709551615-"})
    CHECK(range_of(outside, 10) == "outside");
  CHECK(range_of("bytes=0-", 0) == "outside");
  CHECK(range_of("bytes=-1", 0) == "outside");
  for (const char* aside :
       {"", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=3-1", "rows=0-1", "bytes=0-1,3-4",
        "bytes=+1-2", "bytes= 1-2", "bytes=1-2-3", "bytes=18446744073709551616-"})
    CHECK(range_of(aside, 10) == "whole");
}

TEST_CASE("A host is a name or an address, with a port or without", "[http]") {
  CHECK(authority_of("LocalHost") == "localhost");
  CHECK(authority_of("a-b_c.example:80") == "a-b_c.example 80");
  CHECK(authority_of("[::1]:65535") == "::1 65535");
  CHECK(authority_of("[FE80::1]") == "fe80::1");
  for (const char* none : {"", ":80", "a:", "a:b", "a:65536", "a:1:2", "a b", "a/b", "user@a",
                           "[::1", "[]", "[::1]80", "[g::1]", "a,b", "权", "::1"})
    CHECK(authority_of(none) == "none");
}

TEST_CASE("An origin is a scheme and a host", "[http]") {
  CHECK(parse_origin("HTTP://Localhost:3000") ==
        WebOrigin{.scheme = "http", .authority = {.host = "localhost", .port = 3000}});
  CHECK(parse_origin("chrome-extension://abc")->scheme == "chrome-extension");
  for (const char* none : {"null", "", "localhost", "http://", "://a", "http://a/", "http://a b",
                           "ht tp://a", "http://a http://b", "*"})
    CHECK_FALSE(parse_origin(none));
}

TEST_CASE("Names of fields have no blanks and no colons", "[http]") {
  CHECK(is_http_token("X-Name_1"));
  for (const char* none : {"", "a b", "a:", "a\n", "é", "a/b"}) CHECK_FALSE(is_http_token(none));
  CHECK(lower_case("ÄBC-x") == "Äbc-x");
}

}  // namespace atelier::formats
