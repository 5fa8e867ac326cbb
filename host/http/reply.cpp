#include "host/http/reply.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <utility>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/http_fields.h"

namespace atelier::http {

namespace {

constexpr std::array<std::pair<int, const char*>, 27> kReasons = {{
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {206, "Partial Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {410, "Gone"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {416, "Range Not Satisfiable"},
    {417, "Expectation Failed"},
    {421, "Misdirected Request"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {505, "HTTP Version Not Supported"},
    {507, "Insufficient Storage"},
}};

const char* reason_of(int status) {
  const auto found = std::find_if(kReasons.begin(), kReasons.end(),
                                  [&](const auto& reason) { return reason.first == status; });
  return found == kReasons.end() ? "" : found->second;
}

bool is_named(std::string_view name, std::string_view other) {
  return formats::lower_case(name) == formats::lower_case(other);
}

bool has(const Response& response, std::string_view name) {
  return std::any_of(response.headers.begin(), response.headers.end(),
                     [&](const auto& header) { return is_named(header.first, name); });
}

// "Sun, 06 Nov 1994 08:49:37 GMT", in the C locale whatever the process has.
std::string date_now() {
  constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%s, %02d %s %04d %02d:%02d:%02d GMT",
                kDays[static_cast<size_t>(parts.tm_wday)], parts.tm_mday,
                kMonths[static_cast<size_t>(parts.tm_mon)], parts.tm_year + 1900, parts.tm_hour,
                parts.tm_min, parts.tm_sec);
  return text.data();
}

class Head {
 public:
  explicit Head(int status)
      : text_("HTTP/1.1 " + std::to_string(status) + " " + reason_of(status) + "\r\n") {}

  void add(std::string_view name, std::string_view value) {
    const auto is_control = [](char c) {
      return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F;
    };
    if (!formats::is_http_token(name) || std::any_of(value.begin(), value.end(), is_control))
      throw Error(ErrorCode::kInternal, "a reply has the header " +
                                            formats::quote_and_escape(name) + " of the value " +
                                            formats::quote_and_escape(value));
    text_.append(name).append(": ").append(value).append("\r\n");
  }
  std::string end() { return std::move(text_) + "\r\n"; }

 private:
  std::string text_;
};

// Pages get no more than they ask for, and pictures that hold programs are not shown.
void add_safety(Head& head, const Response& response, const ReplyFacts& facts) {
  head.add("X-Content-Type-Options", "nosniff");
  const std::string_view type =
      std::string_view(response.content_type).substr(0, response.content_type.find(';'));
  if (is_named(type, "text/html") && !has(response, "Content-Security-Policy"))
    head.add("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'");
  if (is_named(type, "image/svg+xml") && !has(response, "Content-Disposition"))
    head.add("Content-Disposition", "attachment");
  // Pages of allowed origins read by CORS, to which this does not apply.
  head.add("Cross-Origin-Resource-Policy", "same-origin");
  if (facts.allowed_origin) {
    head.add("Access-Control-Allow-Origin", *facts.allowed_origin);
    head.add("Vary", "Origin");
  }
}

}  // namespace

std::string reply_head(const Response& response, const ReplyFacts& facts) {
  Head head(response.status);
  for (const auto& [name, value] : response.headers) {
    for (const char* own : {"Content-Length", "Transfer-Encoding", "Connection", "Content-Type"}) {
      if (is_named(name, own))
        throw Error(ErrorCode::kInternal, "a handler writes the header " + name + " itself");
    }
    head.add(name, value);
  }
  head.add("Date", date_now());
  if (!response.content_type.empty() && response.status != 204)
    head.add("Content-Type", response.content_type);
  if (facts.length) head.add("Content-Length", std::to_string(*facts.length));
  if (facts.is_chunked) head.add("Transfer-Encoding", "chunked");
  if (response.stream && !has(response, "Cache-Control")) head.add("Cache-Control", "no-store");
  head.add("Connection", facts.keeps_alive ? "keep-alive" : "close");
  add_safety(head, response, facts);
  return head.end();
}

}  // namespace atelier::http
