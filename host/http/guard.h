// Who may ask a server for something: the names that it goes by, the pages, the key.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/http_fields.h"
#include "host/http/server.h"

namespace atelier::http {

using Headers = std::map<std::string, std::string, std::less<>>;

class Guard {
 public:
  // `is_loopback`: only this machine reaches the address that is listened on. Throws
  // Error{kInvalidArgument} where the options name no hosts and origins, or no key where one is
  // needed.
  Guard(const ServerOptions& options, bool is_loopback);

  // A page whose name was made to lead here after it was loaded still sends that name. Throws
  // HttpError: 400 without "Host", 421 with one that is not the server's.
  void check_host(const Headers& headers) const;
  // Returns the origin of the page that asks where it is one of those that the options allow;
  // nullopt: no page asks, or the server's own. Throws HttpError 403 for all others.
  std::optional<std::string> check_origin(const Headers& headers) const;
  // Throws HttpError 401.
  void check_key(const Headers& headers) const;

 private:
  bool is_own_name(const formats::Authority& asked) const;

  const std::string key_;
  const bool is_loopback_;
  std::vector<formats::Authority> hosts_;
  std::vector<formats::WebOrigin> origins_;
};

}  // namespace atelier::http
