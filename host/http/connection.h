// One client: its requests, one after the other, and the replies.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "host/http/guard.h"
#include "host/http/message.h"
#include "host/http/reply.h"
#include "host/http/request_reader.h"
#include "host/http/server.h"
#include "host/http/socket.h"

namespace atelier::http {

// What the connections of a server share.
struct Shared {
  const ServerOptions options;
  const Guard guard;
  const Router& router;
  std::atomic<bool> is_stopping = false;
};

class Connection final : public Client {
 public:
  // Owns the descriptor of a connected socket; `shared` outlives it.
  Connection(int descriptor, const Shared& shared);

  // Answers until the client, a failure or shut() ends it. Throws nothing.
  void run();
  // Ends what run() waits for. Safe to call from another thread.
  void shut() { socket_.shut(); }

  bool is_gone() override;
  // Throws Error{kInternal} where the reply is no stream.
  bool send(std::string_view part) override;

 private:
  bool serve_one();
  Response answer(const RequestHead& head);
  Response preflight_reply(const RequestHead& head);
  bool reply(Response response);
  bool reply_with_file(Response response);
  bool reply_with_stream(const Response& response);
  bool send_head(const Response& response, std::optional<uint64_t> length);
  void linger();

  const Shared& shared_;
  Socket socket_;
  RequestReader reader_;

  // About the request that is answered.
  std::string path_, range_;
  ReplyFacts facts_;
  bool is_head_ = false, is_http_1_0_ = false;
  bool is_streaming_ = false, is_lost_ = false;
};

}  // namespace atelier::http
