// Requests out of the bytes of a connection, which may be anything.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "host/http/socket.h"

namespace atelier::http {

// What stands before the body of a request.
struct RequestHead {
  std::string method, target;                                    // as they were sent
  std::map<std::string, std::string, std::less<>> headers = {};  // by names in lower case
  bool is_http_1_0 = false;
  bool keeps_alive = true;  // whether the client wants to send more
};

class RequestReader {
 public:
  // `timeout`: from the first byte of a request to its last, and from one request to the next.
  RequestReader(Socket& socket, std::chrono::milliseconds timeout);
  ~RequestReader();

  // nullopt: the client sends no more. Throws HttpError: 400 where it is malformed or could be
  // read in two ways, 408 where it comes too slowly, 431 where it is too long, 505.
  std::optional<RequestHead> read_head();
  bool has_body() const;  // that is not read yet
  // Throws HttpError 413 where the client says that there are more than `max_bytes`.
  void begin_body(int64_t max_bytes);
  // The body of that request, after begin_body(). nullopt: the client is gone. Throws HttpError:
  // 400, 408, and 413 when more has come.
  std::optional<std::string> read_body();
  // Drops what has come of a request that is refused. No other one is read after it.
  void forget();

 private:
  class Parser;

  bool receive();
  std::optional<std::string> receive_head();

  Socket& socket_;
  const std::chrono::milliseconds timeout_;
  Deadline deadline_{};
  std::string buffer_;  // received and not parsed yet
  std::unique_ptr<Parser> parser_;
};

}  // namespace atelier::http
