// What handlers see of HTTP: a request that has come whole, and what is answered.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace atelier::http {

struct Request {
  std::string method;                                            // "POST"
  std::string path;                                              // decoded, without the query
  std::map<std::string, std::string, std::less<>> query = {};    // decoded
  std::map<std::string, std::string, std::less<>> headers = {};  // by names in lower case
  std::string body = {};                                         // whole, within the server's limit
  // What stood in the pattern's braces: "id" of "/v1/jobs/{id}".
  std::map<std::string, std::string, std::less<>> parameters = {};

  // "" where there is none.
  std::string_view header(std::string_view name) const;
  std::string_view parameter(std::string_view name) const;
};

// The client's end of the line while a handler works. Safe to use from the handler's thread alone.
class Client {
 public:
  virtual ~Client() = default;
  // Whether the client has hung up, or the server is being ended; looks without waiting.
  virtual bool is_gone() = 0;
  // Sends a part of a reply that is a stream; false: the client is gone. Waits where the client
  // reads slowly, up to the server's limit.
  virtual bool send(std::string_view part) = 0;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  // A file that is sent in place of `body`, with ranges where the client asks for one; empty: none.
  std::string file = {};
  // Sends the body by Client::send() in parts, in place of `body`; empty: it is no stream.
  std::function<void(Client&)> stream = {};
};

// Runs on the thread of a connection. An Error that it throws becomes a reply; see Server.
using Handler = std::function<Response(const Request&, Client&)>;

}  // namespace atelier::http
