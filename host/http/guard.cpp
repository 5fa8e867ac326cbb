#include "host/http/guard.h"

#include <algorithm>
#include <arpa/inet.h>
#include <netinet/in.h>

#include "atelier/error.h"

#include "formats/base64.h"
#include "formats/escape.h"

namespace atelier::http {

namespace {

std::string_view value_of(const Headers& headers, std::string_view name) {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : found->second;
}

// Addresses in digits; pages cannot make them lead elsewhere.
bool is_address(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool is_loopback_address(const std::string& host) {
  in_addr address;
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
  return host == "::1";
}

// Takes as long for each text of a length, whatever it has in common with the key.
bool is_key(std::string_view text, std::string_view key) {
  volatile unsigned char difference = text.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < text.size(); ++i)
    difference = static_cast<unsigned char>(difference | (text[i] ^ key[i % key.size()]));
  return difference == 0;
}

// The key of "Bearer KEY", or the password of "Basic BASE64(user:password)".
std::string key_of(std::string_view authorization) {
  const size_t space = std::min(authorization.find(' '), authorization.size());
  const std::string scheme = formats::lower_case(authorization.substr(0, space));
  authorization.remove_prefix(space);
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' '), authorization.size()));
  if (scheme == "bearer") return std::string(authorization);
  if (scheme != "basic") return {};
  const std::string pair = formats::decode_base64(authorization).value_or("");
  const size_t colon = pair.find(':');
  return colon == std::string::npos ? "" : pair.substr(colon + 1);
}

template <typename Parse>
auto parse_all(const std::vector<std::string>& texts, const char* flag, const char* example,
               Parse parse) {
  std::vector<typename decltype(parse(std::string_view()))::value_type> parsed;
  for (const std::string& text : texts) {
    const auto one = parse(std::string_view(text));
    if (!one)
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(flag) + ": " + formats::quote_and_escape(text) + " is not one",
                  std::string("write it as ") + example);
    parsed.push_back(*one);
  }
  return parsed;
}

}  // namespace

Guard::Guard(const ServerOptions& options, bool is_loopback)
    : key_(options.api_key), is_loopback_(is_loopback) {
  if (key_.empty() && !is_loopback)
    throw Error(ErrorCode::kInvalidArgument,
                "--host: others reach " + formats::quote_and_escape(options.host) +
                    ", and would need no key",
                "give --api_key_file, or listen on 127.0.0.1");
  hosts_ = parse_all(options.allowed_hosts, "--allowed_hosts", "example.org or example.org:8080",
                     formats::parse_authority);
  origins_ = parse_all(options.allowed_origins, "--allowed_origins", "http://localhost:3000",
                       formats::parse_origin);
  const bool is_ipv6 = options.host.find(':') != std::string::npos;
  if (auto own = formats::parse_authority(is_ipv6 ? "[" + options.host + "]" : options.host))
    hosts_.push_back(*std::move(own));
}

bool Guard::is_own_name(const formats::Authority& asked) const {
  if (asked.host == "localhost") return true;
  if (is_loopback_ ? is_loopback_address(asked.host) : is_address(asked.host)) return true;
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const formats::Authority& host) {
    return host.host == asked.host && (!host.port || host.port == asked.port);
  });
}

void Guard::check_host(const Headers& headers) const {
  if (!headers.contains("host")) throw HttpError(400, "the request has no Host");
  const auto asked = formats::parse_authority(value_of(headers, "host"));
  if (!asked) throw HttpError(400, "Host is malformed");
  if (!is_own_name(*asked))
    throw HttpError(421, "Host: this server is not " + formats::quote_and_escape(asked->host) +
                             "; start it with --allowed_hosts to let it be");
}

std::optional<std::string> Guard::check_origin(const Headers& headers) const {
  if (!headers.contains("origin")) return std::nullopt;
  const std::string_view text = value_of(headers, "origin");
  if (const auto origin = formats::parse_origin(text)) {
    const bool is_web = origin->scheme == "http" || origin->scheme == "https";
    if (is_web && formats::parse_authority(value_of(headers, "host")) == origin->authority)
      return std::nullopt;
    if (std::find(origins_.begin(), origins_.end(), *origin) != origins_.end())
      return std::string(text);
  }
  throw HttpError(403, "Origin: pages of " + formats::quote_and_escape(text) +
                           " may not use this server; start it with --allowed_origins to let them");
}

void Guard::check_key(const Headers& headers) const {
  if (key_.empty() || is_key(key_of(value_of(headers, "authorization")), key_)) return;
  throw HttpError(401, "this server asks for its key, as \"Authorization: Bearer KEY\"",
                  {{"WWW-Authenticate", "Bearer"}});
}

}  // namespace atelier::http
