#include "host/http/guard.h"

#include <catch2/catch.hpp>
#include <string>

#include "atelier/error.h"

#include "host/http/reply.h"

namespace atelier::http {
namespace {

// The status of what a check throws; 0: it throws nothing.
template <typename Check>
int status_of(Check check) {
  try {
    check();
    return 0;
  } catch (const HttpError& error) {
    return error.status();
  }
}

int host_status(const Guard& guard, const std::string& host) {
  return status_of([&] { guard.check_host({{"host", host}}); });
}

int origin_status(const Guard& guard, const std::string& origin) {
  return status_of([&] { guard.check_origin({{"host", "localhost:7860"}, {"origin", origin}}); });
}

int key_status(const Guard& guard, const std::string& authorization) {
  return status_of([&] { guard.check_key({{"authorization", authorization}}); });
}

}  // namespace

TEST_CASE("A server answers to its own names alone", "[http]") {
  const Guard guard({.allowed_hosts = {"Pictures.example", "other.example:8080"}},
                    /*is_loopback=*/true);
  for (const char* own : {"localhost", "LOCALHOST:1", "127.0.0.1:7860", "127.1.2.3", "[::1]:7860",
                          "pictures.example", "pictures.example:99", "other.example:8080"})
    CHECK(host_status(guard, own) == 0);
  for (const char* other : {"evil.example", "localhost.evil.example", "192.168.1.2", "0.0.0.0",
                            "other.example", "other.example:81", "[fe80::1]", "1.localhost"})
    CHECK(host_status(guard, other) == 421);
  CHECK(host_status(guard, "") == 400);
  CHECK(host_status(guard, "a b") == 400);
  CHECK(status_of([&] { guard.check_host({}); }) == 400);
}

TEST_CASE("A server that others reach answers to addresses, and to its own name", "[http]") {
  const Guard guard({.host = "box.example", .api_key = "k"}, /*is_loopback=*/false);
  CHECK(host_status(guard, "192.168.1.2:7860") == 0);
  CHECK(host_status(guard, "[fe80::1]") == 0);
  CHECK(host_status(guard, "box.example") == 0);
  CHECK(host_status(guard, "evil.example") == 421);
}

TEST_CASE("Only pages of the server and of allowed origins may ask", "[http]") {
  const Guard guard({.allowed_origins = {"http://localhost:3000", "https://chat.example"}},
                    /*is_loopback=*/true);
  CHECK(origin_status(guard, "http://localhost:7860") == 0);
  CHECK(origin_status(guard, "http://localhost:3000") == 0);
  CHECK(guard.check_origin({{"host", "localhost:7860"}}) == std::nullopt);
  CHECK(guard.check_origin({{"host", "localhost:7860"}, {"origin", "http://localhost:7860"}}) ==
        std::nullopt);
  CHECK(guard.check_origin({{"host", "localhost:7860"}, {"origin", "https://chat.example"}}) ==
        "https://chat.example");
  for (const char* other :
       {"null", "", "http://localhost", "http://127.0.0.1:7860", "file://",
        "https://localhost:3000", "http://localhost:7860.evil.example", "http://chat.example",
        "https://chat.example:444", "chrome-extension://localhost:7860", "*"})
    CHECK(origin_status(guard, other) == 403);
}

TEST_CASE("A key is taken as bearer or as password", "[http]") {
  const Guard guard({.api_key = "secret"}, /*is_loopback=*/true);
  CHECK(key_status(guard, "Bearer secret") == 0);
  CHECK(key_status(guard, "bearer  secret") == 0);
  CHECK(key_status(guard, "Basic YTpzZWNyZXQ=") == 0);  // a:secret
  CHECK(key_status(guard, "Basic OnNlY3JldA==") == 0);  // :secret
  for (const char* wrong :
       {"", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "secret", "Bearer Secret",
        "Basic secret", "Basic c2VjcmV0", "Digest secret", "Bearer secretsecret"})
    CHECK(key_status(guard, wrong) == 401);
  CHECK(status_of([&] { guard.check_key({}); }) == 401);
  CHECK(status_of([] { Guard({}, true).check_key({}); }) == 0);
}

TEST_CASE("Options that leave a server open or name nothing are refused", "[http]") {
  CHECK_THROWS_AS(Guard({.host = "0.0.0.0"}, false), Error);
  CHECK_THROWS_WITH(Guard({.allowed_hosts = {"http://a"}}, true),
                    Catch::Contains("--allowed_hosts: \"http://a\" is not one"));
  CHECK_THROWS_WITH(Guard({.allowed_origins = {"*"}}, true), Catch::Contains("--allowed_origins"));
}

TEST_CASE("A reply cannot be given headers by what it repeats", "[http]") {
  CHECK_THROWS_AS(reply_head({.headers = {{"X-Name", "a\r\nSet-Cookie: b"}}}, {}), Error);
  CHECK_THROWS_AS(reply_head({.headers = {{"X-Name: a\r\nB", "c"}}}, {}), Error);
  CHECK_THROWS_AS(reply_head({.headers = {{"X-Name", std::string("a\0b", 3)}}}, {}), Error);
  CHECK_THROWS_AS(reply_head({.content_type = "a/b\nc: d"}, {}), Error);
  CHECK_THROWS_AS(reply_head({.headers = {{"content-length", "3"}}}, {}), Error);
  CHECK_THROWS_AS(reply_head({.headers = {{"Transfer-Encoding", "chunked"}}}, {}), Error);
}

TEST_CASE("Browsers get what a reply is, and no more", "[http]") {
  const auto has = [](const Response& response, const char* line, const ReplyFacts& facts = {}) {
    return reply_head(response, facts).find(std::string("\r\n") + line + "\r\n") !=
           std::string::npos;
  };
  const char* const policy = "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'";
  CHECK(has({}, "X-Content-Type-Options: nosniff"));
  CHECK(has({}, "Cross-Origin-Resource-Policy: same-origin"));
  CHECK(has({}, "Cross-Origin-Resource-Policy: same-origin", {.allowed_origin = "http://a"}));
  CHECK(has({.content_type = "text/HTML; charset=utf-8"}, policy));
  CHECK_FALSE(has(
      {.content_type = "text/html", .headers = {{"content-security-policy", "default-src 'self'"}}},
      policy));
  CHECK(has({.content_type = "image/svg+xml"}, "Content-Disposition: attachment"));
  CHECK(has({}, "Access-Control-Allow-Origin: http://a", {.allowed_origin = "http://a"}));
  CHECK(reply_head({}, {}).find("Access-Control") == std::string::npos);
  CHECK(reply_head({.status = 299}, {}).starts_with("HTTP/1.1 299 \r\n"));
}

}  // namespace atelier::http
