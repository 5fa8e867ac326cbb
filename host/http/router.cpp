#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <spdlog/spdlog.h>

#include "atelier/error.h"

#include "formats/http_fields.h"
#include "formats/route.h"
#include "host/http/server.h"
#include "host/report/error_line.h"

namespace atelier::http {

struct Router::Route {
  std::string method;
  formats::RoutePattern pattern;
  Handler handler;
};

namespace {

// What GET answers, HEAD does.
std::string_view answering(std::string_view method) {
  return method == "HEAD" ? "GET" : method;
}

bool is_below(std::string_view path, std::string_view prefix) {
  if (!path.starts_with(prefix)) return false;
  return prefix.empty() || prefix.back() == '/' || path.size() == prefix.size() ||
         path[prefix.size()] == '/';
}

// A failure of this side: its cause is for the log alone, as it may name files.
HttpError own_failure(std::string_view path, const std::string& cause, int status = 500,
                      const char* told = "this failed; the log of the server says why") {
  spdlog::error("{}: {}", report::printable(path), report::printable(cause));
  return {status, told, {{"x-should-retry", "false"}}};
}

HttpError no_memory(std::string_view path, const std::string& cause) {
  return own_failure(path, cause, 507, "out of memory: ask for less at once");
}

std::string with_hint(const std::string& message, const std::string& hint) {
  return hint.empty() ? message : message + "; " + hint;
}

HttpError failure_of(std::string_view path, const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kDataLoss:
      return {400, with_hint(error.message(), error.hint())};
    case ErrorCode::kNotFound:
      return {404, with_hint(error.message(), error.hint())};
    case ErrorCode::kOutOfMemory:
      return no_memory(path, error.what());
    default:
      return own_failure(path, error.what());
  }
}

// What the exception that is being handled is to the client.
HttpError current_failure(std::string_view path) {
  try {
    throw;
  } catch (const HttpError& error) {
    return error;
  } catch (const Error& error) {
    return failure_of(path, error);
  } catch (const formats::ParseError& error) {
    return {400, with_hint(error.what(), error.hint)};
  } catch (const std::bad_alloc&) {
    return no_memory(path, "out of memory");
  } catch (const std::exception& error) {
    return own_failure(path, error.what());
  } catch (...) {
    return own_failure(path, "an exception of no known type");
  }
}

Response plain_error(int status, const std::string& message) {
  const nlohmann::json body = {{"error", {{"message", message}, {"code", status}}}};
  return {.status = status,
          .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

}  // namespace

void Router::add(std::string_view method, std::string_view pattern, Handler handler) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kInternal,
                std::string(method) + " " + std::string(pattern) + ": " + what);
  };
  if (!formats::is_http_token(method) || method == "HEAD" || method == "OPTIONS")
    fail("no handler has this method");
  try {
    Route route{.method = std::string(method),
                .pattern = formats::RoutePattern(pattern),
                .handler = std::move(handler)};
    for (const auto& other : routes_) {
      if (other->method == method && other->pattern.meets(route.pattern))
        fail("takes requests of " + other->pattern.text());
    }
    routes_.push_back(std::make_shared<const Route>(std::move(route)));
  } catch (const formats::ParseError& error) {
    fail(error.what());
  }
}

Response Router::answer(Request request, Client& client) const {
  const std::string path = request.path;
  try {
    std::set<std::string> allowed;
    for (const auto& route : routes_) {
      auto parameters = route->pattern.match(path);
      if (!parameters) continue;
      if (route->method == answering(request.method)) {
        request.parameters = *std::move(parameters);
        return route->handler(request, client);
      }
      allowed.insert(route->method);
      if (route->method == "GET") allowed.insert("HEAD");
    }
    if (allowed.empty()) throw HttpError(404, "there is nothing at this path");
    std::string list;
    for (const std::string& method : allowed) list += (list.empty() ? "" : ", ") + method;
    throw HttpError(405, "this path takes " + list, {{"Allow", list}});
  } catch (...) {
    return error_reply(path, current_failure(path));
  }
}

void Router::on_error(std::string_view prefix, ErrorReply reply) {
  error_replies_.emplace_back(prefix, std::move(reply));
}

Response Router::error_reply(std::string_view path, const HttpError& error) const {
  const std::pair<std::string, ErrorReply>* longest = nullptr;
  for (const auto& entry : error_replies_) {
    if (is_below(path, entry.first) &&
        (longest == nullptr || entry.first.size() > longest->first.size()))
      longest = &entry;
  }
  Response reply = longest == nullptr ? plain_error(error.status(), error.what())
                                      : longest->second(error.status(), error.what());
  reply.headers.insert(reply.headers.end(), error.headers().begin(), error.headers().end());
  return reply;
}

void Router::add_open(std::string_view path) {
  open_.emplace_back(path);
}

bool Router::is_open(std::string_view path) const {
  return std::find(open_.begin(), open_.end(), path) != open_.end();
}

}  // namespace atelier::http
