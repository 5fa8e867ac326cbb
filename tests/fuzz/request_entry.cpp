#include <string>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz/entries.h"
#include "fuzz/promise.h"
#include "host/http/request_reader.h"
#include "host/http/server.h"

namespace atelier::formats {

namespace {

constexpr int64_t kMaxBody = 1000;
constexpr std::chrono::minutes kNever{60};

// Requests until one is refused or nothing follows.
void read_all(http::RequestReader& reader) {
  while (const auto head = reader.read_head()) {
    promise(!head->method.empty() && !head->target.empty(), "a request asks for something");
    promise(head->headers.size() <= 100, "a request has few headers");
    for (const auto& [name, value] : head->headers)
      promise(!name.empty() && value.find_first_of("\r\n") == std::string::npos,
              "a header is one line");
    reader.begin_body(kMaxBody);
    const auto body = reader.read_body();
    if (!body) return;
    promise(body->size() <= kMaxBody, "a body keeps to its limit");
  }
}

}  // namespace

// All that a client sends on one connection, which it then ends.
void fuzz_request(std::string_view bytes) {
  int ends[2] = {};
  promise(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "there is a socket");
  bytes = bytes.substr(0, 100'000);  // what a socket holds
  promise(::write(ends[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
          "a socket takes the bytes");
  ::close(ends[1]);
  http::Socket socket(ends[0]);
  http::RequestReader reader(socket, kNever);
  try {
    read_all(reader);
  } catch (const http::HttpError& error) {
    promise(error.status() >= 400 && error.status() <= 505, "a refusal has a status");
  }
}

}  // namespace atelier::formats
