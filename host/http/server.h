// An HTTP server for a few clients on this machine: a thread for each connection, limits on
// everything, and nothing of it is trusted.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/http/message.h"

namespace atelier::http {

struct ServerOptions {
  std::string host = "127.0.0.1";  // an address of this machine
  uint16_t port = 7860;            // 0: any that is free
  // What clients send as "Authorization: Bearer KEY" (or as basic authentication's password);
  // compared in constant time. Empty: none is asked for, which only loopback addresses may do.
  std::string api_key = {};
  // Beside localhost and `host` itself: names that "Host" may have, and origins that "Origin" may
  // have, which are also told to browsers as allowed. Without any nothing of CORS is sent.
  std::vector<std::string> allowed_hosts = {}, allowed_origins = {};
  int64_t max_body_bytes = int64_t{64} << 20;
  int max_connections = 64;
  // From the first byte of a request to its last, and from one request to the next.
  std::chrono::milliseconds read_timeout{30'000};
  std::chrono::milliseconds write_timeout{60'000};  // in which a client must take some of a reply
};

// A failure with a status of its own: thrown by handlers, answered in the form of the path's API.
class HttpError : public std::exception {
 public:
  HttpError(int status, std::string message,
            std::vector<std::pair<std::string, std::string>> headers = {})
      : status_(status), message_(std::move(message)), headers_(std::move(headers)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  int status() const { return status_; }
  const std::vector<std::pair<std::string, std::string>>& headers() const { return headers_; }

 private:
  int status_;
  std::string message_;
  std::vector<std::pair<std::string, std::string>> headers_;
};

// Which handler has a request. Patterns: "/v1/jobs/{id}/events"; a brace holds one part of a path.
class Router {
 public:
  // Throws Error{kInternal} where two patterns would take the same requests.
  void add(std::string_view method, std::string_view pattern, Handler handler);
  // Answers 404, or 405 with "Allow", where no handler has it; what answers GET answers HEAD too.
  // What a handler throws becomes the reply of its path: an HttpError with its status, a wrong
  // argument or a ParseError 400, what is not found 404, all else 500, which tells clients not to
  // try again and says nothing of this machine.
  Response answer(Request request, Client& client) const;
  // Makes the reply of an error that a handler threw, for paths below `prefix`: each API has its
  // own form. The longest prefix counts.
  using ErrorReply = std::function<Response(int status, const std::string& message)>;
  void on_error(std::string_view prefix, ErrorReply reply);
  // The reply of an error in the form of the path's API.
  Response error_reply(std::string_view path, const HttpError& error) const;
  // Paths that need no key: "/health". Everything else does where there is one.
  void add_open(std::string_view path);
  bool is_open(std::string_view path) const;

 private:
  struct Route;
  std::vector<std::shared_ptr<const Route>> routes_;
  std::vector<std::pair<std::string, ErrorReply>> error_replies_;
  std::vector<std::string> open_;
};

class Server {
 public:
  // Listens at once; `router` is complete and outlives the server. Throws Error{kEnvironment} where
  // the address cannot be had, and Error{kInvalidArgument} for an address that is not loopback
  // without a key.
  Server(ServerOptions options, const Router& router);
  // As stop().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;    // that it listens on
  std::string url() const;  // "http://127.0.0.1:7860"
  // Takes no more connections, tells handlers that their clients are gone, and waits for them.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atelier::http
