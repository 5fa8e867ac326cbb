#include "host/http/server.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "atelier/error.h"

#include "host/http/raw_client.h"

namespace atelier::http {
namespace {

using std::chrono::milliseconds;

// A limit that a test does not reach, and one that it waits for.
constexpr milliseconds kLong{120'000}, kShort{50};

ServerOptions options() {
  return {.port = 0, .read_timeout = kLong, .write_timeout = kLong};
}

std::string get(std::string_view path, std::string_view more = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(more) +
         "\r\n";
}

std::string post(std::string_view path, std::string_view body, std::string_view more = "") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(more) + "\r\n" + std::string(body);
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string body_of(const std::string& reply) {
  return reply.substr(reply.find("\r\n\r\n") + 4);
}

// "200" of a reply to the one request of a connection.
std::string status_of(const Server& server, std::string_view request) {
  RawClient client(server.port());
  client.send(request);
  return client.read_to_end().substr(9, 3);
}

void wait_until(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::sleep_for(milliseconds(1));
}

// A server with a handler for each of the things that handlers do.
struct Site {
  Site() {
    router.add("POST", "/echo", [](const Request& request, Client&) {
      return Response{.content_type = "text/plain", .body = request.body};
    });
    router.add("GET", "/hello/{name}", [](const Request& request, Client&) {
      return Response{.body = "hello " + std::string(request.parameter("name"))};
    });
    router.add("GET", "/wait", [this](const Request&, Client& client) {
      is_waiting = true;
      while (!client.is_gone()) std::this_thread::sleep_for(milliseconds(1));
      was_gone = true;
      return Response{};
    });
    router.add("GET", "/bad", [](const Request&, Client&) {
      return Response{.headers = {{"X-A", "a\r\nb"}}};
    });
    router.add("GET", "/health", [](const Request&, Client&) { return Response{}; });
    router.add_open("/health");
  }
  void add_stream(std::function<void(Client&)> stream) {
    router.add("GET", "/events", [stream](const Request&, Client&) {
      return Response{.content_type = "text/event-stream", .stream = stream};
    });
  }

  Router router;
  std::atomic<bool> is_waiting = false, was_gone = false;
};

}  // namespace

TEST_CASE("A connection carries requests one after the other", "[http]") {
  Site site;
  Server server(options(), site.router);
  CHECK(server.url() == "http://127.0.0.1:" + std::to_string(server.port()));
  RawClient client(server.port());
  client.send(get("/hello/a%20b"));
  const std::string first = client.read_reply();
  CHECK(first.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(has(first, "\r\nConnection: keep-alive\r\n"));
  CHECK(body_of(first) == "hello a b");
  // Several at once, of which one has a body in chunks and one is in pieces.
  client.send(post("/echo", "abc") + get("/hello/x") +
              "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
              "3;a=b\r\nfoo\r\n4\r\nbarz\r\n0\r\nX-Trailer: 1\r\n\r\n\r\nGET /hel");
  CHECK(body_of(client.read_reply()) == "abc");
  CHECK(body_of(client.read_reply()) == "hello x");
  CHECK(body_of(client.read_reply()) == "foobarz");
  client.send("lo/y HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const std::string last = client.read_to_end();
  CHECK(body_of(last) == "hello y");
  CHECK(has(last, "\r\nConnection: close\r\n"));
}

TEST_CASE("HEAD is answered with the head of GET", "[http]") {
  Site site;
  Server server(options(), site.router);
  RawClient client(server.port());
  client.send("HEAD /hello/a HTTP/1.1\r\nHost: localhost\r\n\r\n" + get("/hello/b"));
  const std::string head = client.read_to("\r\n\r\n");
  CHECK(has(head, "\r\nContent-Length: 7\r\n"));
  CHECK(client.read_to("\r\n\r\n").starts_with("HTTP/1.1 200"));
  CHECK(client.read(7) == "hello b");
}

TEST_CASE("HTTP/1.0 ends with its reply", "[http]") {
  Site site;
  site.add_stream([](Client& client) { client.send("a") && client.send("b"); });
  Server server(options(), site.router);
  RawClient client(server.port());
  client.send("GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n");
  const std::string reply = client.read_to_end();
  CHECK(body_of(reply) == "ab");
  CHECK_FALSE(has(reply, "chunked"));
}

TEST_CASE("A client that asks is told to go on before it sends its body", "[http]") {
  Site site;
  ServerOptions small = options();
  small.max_body_bytes = 10;
  Server server(small, site.router);
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n";
  RawClient client(server.port());
  client.send(head + "Content-Length: 3\r\n\r\n");
  CHECK(client.read_to("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("abc");
  CHECK(body_of(client.read_reply()) == "abc");
  // One that would send too much is told so instead.
  client.send(head + "Content-Length: 11\r\n\r\n");
  CHECK(client.read_reply().starts_with("HTTP/1.1 413"));
  CHECK(status_of(server, get("/health", "Expect: a miracle\r\n")) == "417");
}

TEST_CASE("A body has its limit, however it comes", "[http]") {
  Site site;
  ServerOptions small = options();
  small.max_body_bytes = 10;
  Server server(small, site.router);
  const std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: "
      "close\r\n\r\n";
  CHECK(status_of(server, post("/echo", "0123456789", "Connection: close\r\n")) == "200");
  CHECK(status_of(server, post("/echo", "0123456789a")) == "413");
  CHECK(status_of(server, chunked + "5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n") == "200");
  CHECK(status_of(server, chunked + "5\r\n01234\r\n6\r\n") == "413");
  CHECK(status_of(server, chunked + "ffffffffffffffff\r\n") == "413");
  CHECK(status_of(server, chunked + "10000000000000000\r\n") == "400");
  CHECK(
      status_of(
          server,
          post("/echo", "").replace(post("/echo", "").find(": 0"), 3, ": 18446744073709551615")) ==
      "413");
}

TEST_CASE("Heads have their limits", "[http]") {
  Site site;
  Server server(options(), site.router);
  CHECK(status_of(server, get("/health", "X: " + std::string(33'000, 'a') + "\r\n")) == "431");
  CHECK(status_of(server, get("/" + std::string(33'000, 'a'))) == "431");
  std::string many;
  for (int i = 0; i < 100; ++i) many += "X" + std::to_string(i) + ": 1\r\n";
  CHECK(status_of(server, get("/health", many)) == "431");
}

TEST_CASE("Fields that come one to a packet have the same limit", "[http]") {
  Site site;
  Server server(options(), site.router);
  RawClient client(server.port());
  client.send("GET /health HTTP/1.1\r\nHost: localhost\r\n");
  for (int i = 0; i < 1000; ++i) client.send("X: a field that ends where its packet does\r\n");
  CHECK(client.read_reply().starts_with("HTTP/1.1 431"));
}

TEST_CASE("What is not HTTP, or could be read in two ways, is refused", "[http]") {
  Site site;
  Server server(options(), site.router);
  const std::string start = "POST /echo HTTP/1.1\r\nHost: localhost\r\n";
  for (const std::string& request :
       {start + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        start + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        start + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n",
        start + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        start + "Content-Length: 3, 3\r\n\r\nabc",
        start + "Content-Length: +3\r\n\r\nabc",
        start + "Content-Length: -3\r\n\r\n",
        start + "Content-Length: 0x3\r\n\r\nabc",
        start + "Content-Length:\r\n\r\n",
        start + "Content-Length : 3\r\n\r\nabc",
        start + "Transfer-Encoding: gzip, chunked\r\n\r\n",
        start + "Transfer-Encoding: chunked, gzip\r\n\r\n",
        start + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        start + "Transfer-Encoding: xchunked\r\n\r\n",
        start + "Transfer-Encoding:\x0b"
                "chunked\r\n\r\n",
        start + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        start + "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        start + "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n",
        start + "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
        start + "Transfer-Encoding: chunked\r\n\r\n3;" + std::string(70'000, 'a'),
        start + "X: a\r\n b\r\n\r\n",
        start + "X\r\n\r\n",
        start + ": a\r\n\r\n",
        start + "X: a\nY: b\r\n\r\n",
        start + "X: a\rb\r\n\r\n",
        start + "X: \x01\r\n\r\n",
        std::string("POST /echo HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"),
        std::string("GET /health HTTP/1.1\r\n\r\n"),
        std::string("GET /health HTTP/1.1\r\nHost: a b\r\n\r\n"),
        get("/health", "Host: localhost\r\n"),
        get("http://localhost/health"),
        get("*"),
        get("/../health"),
        get("/%2e%2e/health"),
        get("/a%2fb"),
        get("/a%00"),
        get("/%c0%af"),
        get("/a?x=%"),
        std::string("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string("GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        std::string("\x16\x03\x01\x02\r\n\r\n"),
        std::string("GET /health\r\n\r\n")}) {
    INFO(request.substr(0, 200));
    CHECK(status_of(server, request) == "400");
  }
  CHECK(status_of(server, "GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n") == "505");
  CHECK(status_of(server, get("/none", "Connection: close\r\n")) == "404");
  CHECK(status_of(server, post("/health", "", "Connection: close\r\n")) == "405");
  CHECK(status_of(server, get("/bad")) == "500");
}

TEST_CASE("Without its key a server answers at open paths alone", "[http]") {
  Site site;
  ServerOptions keyed = options();
  keyed.api_key = "k";
  Server server(keyed, site.router);
  const std::string close = "Connection: close\r\n";
  CHECK(status_of(server, get("/health", close)) == "200");
  CHECK(status_of(server, get("/none", close)) == "401");
  CHECK(status_of(server, get("/hello/a", close + "Authorization: Bearer K\r\n")) == "401");
  CHECK(status_of(server, get("/hello/a", close + "Authorization: Bearer k\r\n")) == "200");
  // No body is taken for the one who does not have it.
  RawClient client(server.port());
  client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
  CHECK(client.read_reply().starts_with("HTTP/1.1 401"));
}

TEST_CASE("Pages of other origins are refused, and allowed ones are told so", "[http]") {
  Site site;
  ServerOptions open = options();
  open.api_key = "k";
  open.allowed_origins = {"http://localhost:3000"};
  Server server(open, site.router);
  const auto ask = [&](const std::string& request) {
    RawClient client(server.port());
    client.send(request);
    return client.read_reply();
  };
  const std::string preflight =
      "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,x-a\r\nOrigin: http://localhost:";
  const std::string allowed = ask(preflight + "3000\r\n\r\n");
  CHECK(allowed.starts_with("HTTP/1.1 204"));
  CHECK(has(allowed, "Access-Control-Allow-Origin: http://localhost:3000\r\n"));
  CHECK(has(allowed, "Access-Control-Allow-Headers: authorization,x-a\r\n"));
  CHECK(ask(preflight + "3001\r\n\r\n").starts_with("HTTP/1.1 403"));
  CHECK(ask(get("/health", "Origin: null\r\n")).starts_with("HTTP/1.1 403"));
  const std::string answered = ask(get("/health", "Origin: http://localhost:3000\r\n"));
  CHECK(answered.starts_with("HTTP/1.1 200"));
  CHECK(has(answered, "Access-Control-Allow-Origin: http://localhost:3000\r\n"));
  CHECK_FALSE(has(ask(get("/health")), "Access-Control"));
  CHECK(ask(get("/health", "").replace(28, 9, "evil.test")).starts_with("HTTP/1.1 421"));
}

TEST_CASE("A file is sent whole or in part", "[http]") {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("atelier_http_" + std::to_string(::getpid()));
  std::string content;
  for (int i = 0; i < 100'000; ++i) content += std::to_string(i);
  std::ofstream(path, std::ios::binary) << content;
  Router router;
  router.add("GET", "/file", [&](const Request&, Client&) {
    return Response{.content_type = "video/mp4", .file = path};
  });
  router.add("GET", "/folder",
             [&](const Request&, Client&) { return Response{.file = path.parent_path()}; });
  Server server(options(), router);
  RawClient client(server.port());
  client.send(get("/file"));
  const std::string whole = client.read_reply();
  CHECK(has(whole, "\r\nAccept-Ranges: bytes\r\n"));
  CHECK(body_of(whole) == content);
  client.send(get("/file", "Range: bytes=10-14\r\n"));
  const std::string part = client.read_reply();
  CHECK(part.starts_with("HTTP/1.1 206"));
  CHECK(has(part, "\r\nContent-Range: bytes 10-14/" + std::to_string(content.size()) + "\r\n"));
  CHECK(body_of(part) == content.substr(10, 5));
  client.send(get("/file", "Range: bytes=10-14\r\nIf-Range: \"x\"\r\n"));
  CHECK(client.read_reply().starts_with("HTTP/1.1 200"));
  client.send("HEAD /file HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(has(client.read_to("\r\n\r\n"), "Content-Length: " + std::to_string(content.size())));
  client.send(get("/file", "Range: bytes=99999999-\r\n"));
  const std::string outside = client.read_reply();
  CHECK(outside.starts_with("HTTP/1.1 416"));
  CHECK(has(outside, "\r\nContent-Range: bytes */" + std::to_string(content.size()) + "\r\n"));
  CHECK(status_of(server, get("/folder")) == "404");
  std::filesystem::remove(path);
  CHECK(status_of(server, get("/file")) == "404");
}

TEST_CASE("A stream comes part by part", "[http]") {
  Site site;
  std::promise<void> go_on;
  site.add_stream([&](Client& client) {
    client.send("data: 1\n\n");
    client.send("");
    go_on.get_future().wait();
    client.send("data: 2\n\n");
  });
  Server server(options(), site.router);
  RawClient client(server.port());
  client.send(get("/events"));
  const std::string head = client.read_to("\r\n\r\n");
  CHECK(has(head, "\r\nTransfer-Encoding: chunked\r\n"));
  CHECK(has(head, "\r\nCache-Control: no-store\r\n"));
  CHECK(client.read_to("1\n\n\r\n") == "9\r\ndata: 1\n\n\r\n");
  go_on.set_value();
  CHECK(client.read_to("0\r\n\r\n") == "9\r\ndata: 2\n\n\r\n0\r\n\r\n");
  client.send(get("/hello/a"));
  CHECK(body_of(client.read_reply()) == "hello a");
}

TEST_CASE("A stream that fails is cut off where it is", "[http]") {
  for (const bool is_known : {true, false}) {
    Site site;
    site.add_stream([&](Client& client) {
      client.send("a");
      if (is_known) throw std::runtime_error("no more");
      throw 7;
    });
    Server server(options(), site.router);
    RawClient client(server.port());
    client.send(get("/events"));
    CHECK(body_of(client.read_to_end()) == "1\r\na\r\n");
  }
}

TEST_CASE("A handler learns that its client has hung up, whatever it sent ahead", "[http]") {
  for (const bool sends_ahead : {false, true}) {
    Site site;
    Server server(options(), site.router);
    RawClient client(server.port());
    client.send(get("/wait"));
    wait_until(site.is_waiting);
    if (sends_ahead) client.send(get("/hello/a") + get("/hello/b"));
    CHECK_FALSE(site.was_gone);
    client.hang_up();
    wait_until(site.was_gone);
  }
}

TEST_CASE("A stream learns that its client has hung up or reads nothing", "[http]") {
  for (const bool hangs_up : {true, false}) {
    Site site;
    std::atomic<bool> is_over = false;
    site.add_stream([&](Client& client) {
      const std::string part(1 << 16, 'a');
      while (client.send(part)) {
      }
      CHECK(client.is_gone());
      is_over = true;
    });
    ServerOptions impatient = options();
    impatient.write_timeout = kShort;
    Server server(hangs_up ? options() : impatient, site.router);
    RawClient client(server.port());
    client.send(get("/events"));
    client.read_to("\r\n\r\n");
    if (hangs_up) client.hang_up();
    wait_until(is_over);
  }
}

TEST_CASE("A request that comes too slowly is ended", "[http]") {
  Site site;
  ServerOptions impatient = options();
  impatient.read_timeout = kShort;
  Server server(impatient, site.router);
  RawClient silent(server.port());
  CHECK(silent.read_to_end().empty());
  // A busy machine may take the start of a request for silence: then it is sent again.
  const auto check = [&](const std::string& start, const std::string& more) {
    std::string reply;
    while (reply.empty()) {
      RawClient client(server.port());
      client.send(start);
      while (!client.has_received() && client.send(more))
        std::this_thread::sleep_for(milliseconds(1));
      reply = client.read_reply();
    }
    CHECK(reply.starts_with("HTTP/1.1 408"));
  };
  const std::string post = "POST /echo HTTP/1.1\r\nHost: localhost\r\n";
  check("G", "");
  check(post, "");
  check(post + "Content-Length: 2\r\n\r\na", "");
  // Bytes that come one by one win no time.
  check("G", "a");
  check(post + "Content-Length: 1000000\r\n\r\n", "a");
}

TEST_CASE("Connections beyond the limit are told so at once, and later ones are taken", "[http]") {
  Site site;
  ServerOptions few = options();
  few.max_connections = 2;
  Server server(few, site.router);
  auto first = std::make_unique<RawClient>(server.port());
  RawClient second(server.port());
  for (RawClient* client : {first.get(), &second}) {
    client->send(get("/hello/a"));
    client->read_reply();
  }
  for (int i = 0; i < 300; ++i) {
    RawClient other(server.port());
    other.send(get("/hello/a"));
    const std::string reply = other.read_to_end();
    CHECK(reply.starts_with("HTTP/1.1 503"));
    CHECK(has(reply, "\r\nRetry-After: 1\r\n"));
  }
  first.reset();
  std::string reply;
  while (!reply.starts_with("HTTP/1.1 200")) {
    RawClient other(server.port());
    other.send(get("/hello/a", "Connection: close\r\n"));
    reply = other.read_to_end();
  }
  second.send(get("/hello/b"));
  CHECK(body_of(second.read_reply()) == "hello b");
}

TEST_CASE("A server stops whatever its clients do", "[http]") {
  Site site;
  std::atomic<bool> is_streaming = false;
  site.add_stream([&](Client& client) {
    is_streaming = true;
    const std::string part(1 << 16, 'a');
    while (client.send(part)) {
    }
  });
  auto server = std::make_unique<Server>(options(), site.router);
  RawClient idle(server->port()), half(server->port()), waiting(server->port()),
      reading(server->port());
  half.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1");
  waiting.send(get("/wait"));
  reading.send(get("/events"));
  wait_until(site.is_waiting);
  wait_until(is_streaming);
  server->stop();
  CHECK(site.was_gone);
  CHECK(idle.read_to_end().empty());
  server->stop();
  server.reset();
}

TEST_CASE("A server that cannot listen says why", "[http]") {
  Router router;
  Server server(options(), router);
  ServerOptions taken = options();
  taken.port = server.port();
  CHECK_THROWS_WITH(Server(taken, router), Catch::Contains("cannot listen on \"127.0.0.1\""));
  ServerOptions open = options();
  open.host = "0.0.0.0";
  CHECK_THROWS_WITH(Server(open, router), Catch::Contains("--api_key_file"));
  ServerOptions unknown = options();
  unknown.host = "no such host";
  CHECK_THROWS_AS(Server(unknown, router), Error);
}

}  // namespace atelier::http
