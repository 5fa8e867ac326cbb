// The head of a reply.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "host/http/message.h"

namespace atelier::http {

// How a reply is sent.
struct ReplyFacts {
  bool keeps_alive = true;
  bool is_chunked = false;
  std::optional<uint64_t> length = {};  // of the body; nullopt: it is not known, or there is none
  std::optional<std::string> allowed_origin = {};  // that browsers are told
};

// Adds what keeps browsers from taking a reply for more than it is. Throws Error{kInternal} where a
// header of `response` holds a line end or is one that the server writes itself.
std::string reply_head(const Response& response, const ReplyFacts& facts);

}  // namespace atelier::http
