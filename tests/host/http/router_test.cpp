#include <catch2/catch.hpp>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "atelier/error.h"

#include "formats/parse_error.h"
#include "host/http/server.h"

namespace atelier::http {
namespace {

class NoClient : public Client {
 public:
  bool is_gone() override { return false; }
  bool send(std::string_view) override { return false; }
};

Response ask(const Router& router, std::string method, std::string path) {
  NoClient client;
  return router.answer({.method = std::move(method), .path = std::move(path)}, client);
}

std::string message_of(const Response& response) {
  return nlohmann::json::parse(response.body)["error"]["message"];
}

std::string header_of(const Response& response, std::string_view name) {
  for (const auto& [key, value] : response.headers)
    if (key == name) return value;
  return "";
}

Handler says(std::string text) {
  return [text](const Request& request, Client&) {
    return Response{.body = text + std::string(request.parameter("id"))};
  };
}

// The reply where a handler throws `thrown`.
template <typename Thrown>
Response thrown(const Thrown& what) {
  Router router;
  router.add("GET", "/", [what](const Request&, Client&) -> Response { throw what; });
  return ask(router, "GET", "/");
}

}  // namespace

TEST_CASE("A request goes to the handler of its method and path", "[http]") {
  Router router;
  router.add("GET", "/jobs", says("list"));
  router.add("POST", "/jobs", says("new"));
  router.add("GET", "/jobs/{id}", says("job "));
  router.add("DELETE", "/jobs/{id}", says("gone "));
  CHECK(ask(router, "GET", "/jobs").body == "list");
  CHECK(ask(router, "HEAD", "/jobs").body == "list");
  CHECK(ask(router, "POST", "/jobs").body == "new");
  CHECK(ask(router, "GET", "/jobs/7").body == "job 7");
  CHECK(ask(router, "DELETE", "/jobs/7").body == "gone 7");
  CHECK(ask(router, "GET", "/jobs/").status == 404);
  CHECK(ask(router, "GET", "/jobs/7/x").status == 404);
  const Response other = ask(router, "PUT", "/jobs/7");
  CHECK(other.status == 405);
  CHECK(header_of(other, "Allow") == "DELETE, GET, HEAD");
  CHECK(ask(router, "OPTIONS", "/jobs").status == 405);
}

TEST_CASE("Two handlers never have the same requests", "[http]") {
  Router router;
  router.add("GET", "/a/{x}", says(""));
  CHECK_THROWS_AS(router.add("GET", "/a/b", says("")), Error);
  CHECK_THROWS_AS(router.add("GET", "/{y}/b", says("")), Error);
  CHECK_THROWS_AS(router.add("HEAD", "/c", says("")), Error);
  CHECK_THROWS_AS(router.add("GET ", "/c", says("")), Error);
  CHECK_THROWS_AS(router.add("GET", "/{", says("")), Error);
  router.add("POST", "/a/b", says(""));
}

TEST_CASE("What a handler throws becomes a reply", "[http]") {
  const Response refused = thrown(HttpError(429, "later", {{"Retry-After", "3"}}));
  CHECK(refused.status == 429);
  CHECK(header_of(refused, "Retry-After") == "3");
  CHECK(message_of(refused) == "later");
  CHECK(thrown(Error(ErrorCode::kInvalidArgument, "height: 7 is odd", "take 8")).status == 400);
  CHECK(message_of(thrown(Error(ErrorCode::kInvalidArgument, "height: 7 is odd", "take 8"))) ==
        "height: 7 is odd; take 8");
  CHECK(thrown(Error(ErrorCode::kNotFound, "no such job")).status == 404);
  CHECK(thrown(Error(ErrorCode::kUnsupported, "no")).status == 400);
  const Response form = thrown(formats::ParseError("JSON_SYNTAX", "no JSON", "write some"));
  CHECK(form.status == 400);
  CHECK(message_of(form) == "no JSON; write some");
}

TEST_CASE("A failure of the server tells nothing of it, and that trying again is of no use",
          "[http]") {
  const auto check = [](const Response& response, int status = 500) {
    CHECK(response.status == status);
    CHECK(header_of(response, "x-should-retry") == "false");
    CHECK(response.body.find("/home") == std::string::npos);
  };
  check(thrown(Error(ErrorCode::kOutOfMemory, "/home/a: 7 GiB")), 507);
  check(thrown(Error(ErrorCode::kEnvironment, "/home/a: disk full")));
  check(thrown(Error(ErrorCode::kInternal, "/home/a")));
  check(thrown(std::runtime_error("/home/a")));
  check(thrown(std::bad_alloc()), 507);
  check(thrown(7));
  CHECK(message_of(thrown(std::bad_alloc())).starts_with("out of memory"));
}

TEST_CASE("Each API has its own form of errors, and the longest prefix counts", "[http]") {
  Router router;
  const auto form = [](std::string name) {
    return [name](int status, const std::string& message) {
      return Response{.status = status, .body = name + ": " + message};
    };
  };
  router.on_error("/v1", form("v1"));
  router.on_error("/v1/images", form("images"));
  CHECK(ask(router, "GET", "/v1/x").body.starts_with("v1: "));
  CHECK(ask(router, "GET", "/v1").body.starts_with("v1: "));
  CHECK(ask(router, "GET", "/v1/images").body.starts_with("images: "));
  CHECK(ask(router, "GET", "/v1/images/x").body.starts_with("images: "));
  CHECK(ask(router, "GET", "/v1/imagesx").body.starts_with("v1: "));
  CHECK(message_of(ask(router, "GET", "/v10")) == "there is nothing at this path");
}

TEST_CASE("Only paths that were named are open", "[http]") {
  Router router;
  router.add_open("/health");
  CHECK(router.is_open("/health"));
  CHECK_FALSE(router.is_open("/health/"));
  CHECK_FALSE(router.is_open("/"));
}

TEST_CASE("What a request does not have is empty", "[http]") {
  const Request request{.method = "GET", .path = "/", .headers = {{"host", "a"}}};
  CHECK(request.header("host") == "a");
  CHECK(request.header("origin").empty());
  CHECK(request.parameter("id").empty());
}

}  // namespace atelier::http
