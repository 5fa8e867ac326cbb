// A server to attack: its handlers do what those of a product do, and its limits are small.
//
// usage: http_tool FILE MAX_BODY_BYTES MAX_CONNECTIONS READ_MS WRITE_MS [KEY]
//
// Writes its port, and ends with its standard input.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "formats/multipart.h"
#include "host/http/server.h"

namespace {

using atelier::http::Client;
using atelier::http::Request;
using atelier::http::Response;

std::atomic<int> num_waiting = 0;  // handlers that wait for their clients to go

Response wait(const Request&, Client& client) {
  ++num_waiting;
  while (!client.is_gone()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --num_waiting;
  return {};
}

void stream_for_ever(Client& client) {
  ++num_waiting;
  const std::string part(1 << 16, 'a');
  while (client.send(part)) {
  }
  --num_waiting;
}

Response take_form(const Request& request, Client&) {
  const auto parts =
      atelier::formats::parse_multipart(request.header("content-type"), request.body);
  size_t num_bytes = 0;
  for (const auto& part : parts) num_bytes += part.bytes.size();
  return {.body = std::to_string(parts.size()) + " " + std::to_string(num_bytes)};
}

atelier::http::Router make_router(const std::string& file) {
  atelier::http::Router router;
  router.add("POST", "/size", [](const Request& request, Client&) {
    return Response{.body = std::to_string(request.body.size())};
  });
  router.add("POST", "/form", take_form);
  router.add("GET", "/wait", wait);
  router.add("GET", "/waiting",
             [](const Request&, Client&) { return Response{.body = std::to_string(num_waiting)}; });
  router.add("GET", "/stream", [](const Request&, Client&) {
    return Response{.content_type = "text/event-stream", .stream = stream_for_ever};
  });
  router.add("GET", "/file", [file](const Request&, Client&) {
    return Response{.content_type = "video/mp4", .file = file};
  });
  router.add("GET", "/files/{name}", [](const Request& request, Client&) {
    return Response{.body = std::string(request.parameter("name"))};
  });
  router.add("GET", "/health", [](const Request&, Client&) { return Response{}; });
  return router;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: http_tool FILE MAX_BODY MAX_CONNECTIONS READ_MS WRITE_MS [KEY]\n");
    return 2;
  }
  const atelier::http::Router router = make_router(argv[1]);
  atelier::http::Server server({.port = 0,
                                .api_key = argc > 6 ? argv[6] : "",
                                .max_body_bytes = std::atoll(argv[2]),
                                .max_connections = std::atoi(argv[3]),
                                .read_timeout = std::chrono::milliseconds(std::atoi(argv[4])),
                                .write_timeout = std::chrono::milliseconds(std::atoi(argv[5]))},
                               router);
  std::cout << server.port() << std::endl;
  while (std::cin.get() != EOF) {
  }
  server.stop();
}
