#include "formats/url.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "formats/data_url.h"
#include "formats/expect_error.h"
#include "formats/route.h"

namespace atelier::formats {
namespace {

using Values = std::map<std::string, std::string, std::less<>>;

std::string tag_of_target(std::string_view text) {
  return error_of([&] { parse_request_target(text); }).tag;
}

std::string tag_of_route(std::string_view text) {
  return error_of([&] { RoutePattern pattern(text); }).tag;
}

}  // namespace

TEST_CASE("A target is a path and a query, both decoded", "[http]") {
  const RequestTarget target =
      parse_request_target("/v1/a%20%e6%9d%83+b?x=1+2%2B&&flag&y=&%7a=a=b");
  CHECK(target.path == "/v1/a 权+b");
  CHECK(target.query == Values{{"x", "1 2+"}, {"flag", ""}, {"y", ""}, {"z", "a=b"}});
  CHECK(parse_request_target("/").query.empty());
  CHECK(parse_request_target("/?").path == "/");
  CHECK(parse_request_target("/...//a.b/..c?/../").path == "/...//a.b/..c");
}

TEST_CASE("A target that leads elsewhere or reads in two ways is refused", "[http]") {
  for (const char* elsewhere :
       {"", "*", "a", "http://evil.example/a", "evil.example:80", "/..", "/../a", "/a/..", "/a/./b",
        "/.", "/a/%2e%2e/b", "/a/.%2E", "/a%2fb", "/a%2F..%2fb", "/a%5cb", "/a\\b", "/a#b"}) {
    INFO(elsewhere);
    CHECK(tag_of_target(elsewhere) == "URL_TARGET");
  }
  for (const char* broken : {"/%", "/%2", "/%g0", "/%0g", "/a?x=%", "/%%41", "/%u0041"}) {
    INFO(broken);
    CHECK(tag_of_target(broken) == "URL_PERCENT");
  }
  // A NUL, control characters, overlong forms of "/" and of NUL, a surrogate, half a character.
  for (const char* text : {"/a%00.png", "/%0d%0a", "/%7f", "/a?x=%0A", "/%c0%af", "/%e0%80%af",
                           "/%c0%80", "/%ed%a0%80", "/%e6%9d", "/%ff", "/\xc0\xaf"}) {
    INFO(text);
    CHECK(tag_of_target(text) == "URL_TEXT");
  }
  CHECK(tag_of_target(std::string_view("/a\0b", 4)) == "URL_TEXT");
  CHECK(tag_of_target("/?a=1&a=2") == "URL_QUERY");
  std::string many = "/?";
  for (int i = 0; i < 101; ++i) many += "n" + std::to_string(i) + "&";
  CHECK(tag_of_target(many) == "URL_QUERY");
}

TEST_CASE("A pattern takes paths of its parts", "[http]") {
  const RoutePattern pattern("/v1/jobs/{id}/files/{n}");
  CHECK(pattern.match("/v1/jobs/a b/files/0") == Values{{"id", "a b"}, {"n", "0"}});
  for (const char* other : {"", "/", "v1/jobs/a/files/0", "/v1/jobs//files/0", "/v1/jobs/a/files/",
                            "/v1/jobs/a/files", "/v1/jobs/a/files/0/", "/V1/jobs/a/files/0"})
    CHECK_FALSE(pattern.match(other));
  CHECK(RoutePattern("/").match("/") == Values{});
  CHECK_FALSE(RoutePattern("/").match("/a"));
  CHECK_FALSE(RoutePattern("/a").match("/a/"));
  CHECK(RoutePattern("/{a}").match("/{a}") == Values{{"a", "{a}"}});
  for (const char* bad : {"", "a", "/{}", "/{a", "/a}", "/x{a}", "/{a}{b}", "/{a}/{a}"})
    CHECK(tag_of_route(bad) == "ROUTE");
}

TEST_CASE("Patterns meet where one path fits both", "[http]") {
  const auto meet = [](const char* a, const char* b) {
    CHECK(RoutePattern(a).meets(RoutePattern(b)) == RoutePattern(b).meets(RoutePattern(a)));
    return RoutePattern(a).meets(RoutePattern(b));
  };
  CHECK(meet("/a/{x}", "/a/b"));
  CHECK(meet("/{x}/b", "/a/{y}"));
  CHECK_FALSE(meet("/a/{x}", "/b/{x}"));
  CHECK_FALSE(meet("/a/{x}", "/a"));
  CHECK_FALSE(meet("/a/{x}", "/a/"));
}

TEST_CASE("A data: URL has a type and bytes in base64", "[http]") {
  const DataUrl url = parse_data_url("DATA:image/png;base64,iVBORw==");
  CHECK(url.content_type == "image/png");
  CHECK(url.bytes == "\x89PNG");
  CHECK(parse_data_url("data:;base64,").bytes.empty());
  CHECK(is_data_url("data:"));
  CHECK_FALSE(is_data_url("dat"));
  for (const char* bad : {"", "data:", "data:image/png,abc", "data:image/png;base64", "file:a,b",
                          "http://a/;base64,YQ==", "data:;base64,a", "data:;base64,YQ==\n",
                          "data:;base64,Y-Q=", "data:;base64;x,YQ=="})
    CHECK(error_of([&] { parse_data_url(bad); }).tag == "DATA_URL");
}

}  // namespace atelier::formats
