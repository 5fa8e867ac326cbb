#include "host/http/connection.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <memory>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "atelier/error.h"

#include "formats/url.h"
#include "host/report/error_line.h"

namespace atelier::http {

namespace {

constexpr size_t kFileBytes = 256 << 10;  // of a file that are sent at once
// For which a client that is refused may go on to send: were the connection ended at once, its
// system would drop the reply.
constexpr std::chrono::milliseconds kLinger{2000};

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat facts {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &facts) != 0 || !S_ISREG(facts.st_mode)) {
      if (descriptor_ >= 0) ::close(descriptor_);
      throw HttpError(404, "the file is not there any more");
    }
    size_ = static_cast<uint64_t>(facts.st_size);
  }
  ~OpenFile() { ::close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  uint64_t size() const { return size_; }
  // As many of the bytes from `begin` on as fit; 0: the file has become shorter, or cannot be read.
  size_t read(std::vector<char>& bytes, uint64_t begin) const {
    return static_cast<size_t>(std::max<ssize_t>(
        ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(begin)), 0));
  }

 private:
  int descriptor_;
  uint64_t size_ = 0;
};

std::string_view value_of(const Headers& headers, std::string_view name) {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : found->second;
}

bool wants_to_be_told_to_continue(const RequestHead& head) {
  const std::string expected = formats::lower_case(value_of(head.headers, "expect"));
  if (expected.empty()) return false;
  if (expected != "100-continue") throw HttpError(417, "Expect: only 100-continue is known");
  return !head.is_http_1_0;
}

}  // namespace

Connection::Connection(int descriptor, const Shared& shared)
    : shared_(shared), socket_(descriptor), reader_(socket_, shared.options.read_timeout) {}

bool Connection::is_gone() {
  return is_lost_ || shared_.is_stopping || socket_.has_hung_up();
}

bool Connection::send(std::string_view part) {
  if (!is_streaming_) throw Error(ErrorCode::kInternal, "a part is sent of a reply that has none");
  if (is_gone()) return false;
  if (part.empty()) return true;  // as a chunk it would be the last
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", part.size());
  const auto stall = shared_.options.write_timeout;
  is_lost_ = facts_.is_chunked ? !(socket_.write(size, stall) && socket_.write(part, stall) &&
                                   socket_.write("\r\n", stall))
                               : !socket_.write(part, stall);
  return !is_lost_;
}

void Connection::run() {
  try {
    while (!shared_.is_stopping && serve_one()) {
    }
    linger();
  } catch (const std::exception& error) {
    spdlog::error("a connection is ended: {}", report::printable(error.what()));
  } catch (...) {
    spdlog::error("a connection is ended by an exception of no known type");
  }
  socket_.shut();
}

// Whether there may be another request.
bool Connection::serve_one() {
  path_ = range_ = {};
  facts_ = {};
  is_head_ = is_streaming_ = false;
  try {
    const auto head = reader_.read_head();
    if (!head) return false;
    Response response = answer(*head);
    return !is_lost_ && reply(std::move(response)) && facts_.keeps_alive;
  } catch (const HttpError& error) {
    facts_.keeps_alive = false;  // some of the request may not have been read
    reader_.forget();
    reply(shared_.router.error_reply(path_, error));
    return false;
  }
}

// Checks what can be checked before the body is taken.
Response Connection::answer(const RequestHead& head) {
  facts_.keeps_alive = head.keeps_alive && !shared_.is_stopping;
  is_head_ = head.method == "HEAD";
  is_http_1_0_ = head.is_http_1_0;
  Request request{.method = head.method, .path = {}, .headers = head.headers};
  try {
    formats::RequestTarget target = formats::parse_request_target(head.target);
    path_ = request.path = std::move(target.path);
    request.query = std::move(target.query);
  } catch (const formats::ParseError& error) {
    throw HttpError(400, error.what());
  }
  shared_.guard.check_host(head.headers);
  facts_.allowed_origin = shared_.guard.check_origin(head.headers);
  if (head.method == "OPTIONS" && facts_.allowed_origin &&
      head.headers.contains("access-control-request-method"))
    return preflight_reply(head);
  if (!shared_.router.is_open(path_)) shared_.guard.check_key(head.headers);
  if (head.method == "GET" && !head.headers.contains("if-range"))
    range_ = value_of(head.headers, "range");

  const bool is_waiting = wants_to_be_told_to_continue(head);
  reader_.begin_body(shared_.options.max_body_bytes);
  if (is_waiting && reader_.has_body())
    socket_.write("HTTP/1.1 100 Continue\r\n\r\n", shared_.options.write_timeout);
  auto body = reader_.read_body();
  is_lost_ = !body;
  if (is_lost_) return {};
  request.body = *std::move(body);
  return shared_.router.answer(std::move(request), *this);
}

// What browsers ask before they let a page of an origin that is allowed send something.
Response Connection::preflight_reply(const RequestHead& head) {
  if (reader_.has_body()) facts_.keeps_alive = false;  // it is not read
  return {.status = 204,
          .headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, DELETE"},
                      {"Access-Control-Allow-Headers",
                       std::string(value_of(head.headers, "access-control-request-headers"))},
                      {"Access-Control-Max-Age", "600"}}};
}

// false: the connection is of no more use.
bool Connection::reply(Response response) {
  try {
    if (response.stream) return reply_with_stream(response);
    if (!response.file.empty()) return reply_with_file(std::move(response));
    const bool has_length = response.status != 204 && response.status != 304;
    return send_head(response, has_length ? std::optional(response.body.size()) : std::nullopt) &&
           (is_head_ || !has_length || socket_.write(response.body, shared_.options.write_timeout));
  } catch (const Error& error) {
    spdlog::error("{}: {}", report::printable(path_), report::printable(error.what()));
    facts_.keeps_alive = false;
    const HttpError told(500, "this failed; the log of the server says why",
                         {{"x-should-retry", "false"}});
    const Response failure = shared_.router.error_reply(path_, told);
    return send_head(failure, failure.body.size()) &&
           (is_head_ || socket_.write(failure.body, shared_.options.write_timeout));
  }
}

bool Connection::send_head(const Response& response, std::optional<uint64_t> length) {
  facts_.length = length;
  return socket_.write(reply_head(response, facts_), shared_.options.write_timeout);
}

bool Connection::reply_with_file(Response response) {
  const OpenFile file(response.file);
  formats::ByteRange part{.begin = 0, .end = file.size()};
  response.headers.emplace_back("Accept-Ranges", "bytes");
  try {
    if (const auto range = formats::parse_byte_range(range_, file.size())) {
      part = *range;
      response.status = 206;
      response.headers.emplace_back("Content-Range", "bytes " + std::to_string(part.begin) + "-" +
                                                         std::to_string(part.end - 1) + "/" +
                                                         std::to_string(file.size()));
    }
  } catch (const formats::ParseError& error) {
    throw HttpError(416, error.what(),
                    {{"Content-Range", "bytes */" + std::to_string(file.size())}});
  }
  if (!send_head(response, part.end - part.begin)) return false;
  if (is_head_) return true;
  std::vector<char> bytes(kFileBytes);
  while (part.begin < part.end) {
    const size_t count = std::min<uint64_t>(file.read(bytes, part.begin), part.end - part.begin);
    if (count == 0 || !socket_.write({bytes.data(), count}, shared_.options.write_timeout))
      return false;
    part.begin += count;
  }
  return true;
}

bool Connection::reply_with_stream(const Response& response) {
  facts_.is_chunked = !is_http_1_0_;
  if (is_http_1_0_) facts_.keeps_alive = false;  // its end is that of the connection
  if (!send_head(response, std::nullopt)) return false;
  if (is_head_) return true;
  is_streaming_ = true;
  try {
    response.stream(*this);
  } catch (const std::exception& error) {
    // Without its last chunk the client sees that the reply is not whole.
    spdlog::error("{}: the stream is cut off: {}", report::printable(path_),
                  report::printable(error.what()));
    is_lost_ = true;
  }
  is_streaming_ = false;
  return !is_lost_ &&
         (!facts_.is_chunked || socket_.write("0\r\n\r\n", shared_.options.write_timeout));
}

// Takes what the client still sends and forgets it, so that the last reply reaches it.
void Connection::linger() {
  if (is_lost_) return;
  socket_.end_writing();
  const Deadline deadline = std::chrono::steady_clock::now() + kLinger;
  std::vector<char> bytes(kFileBytes);
  while (!shared_.is_stopping && std::chrono::steady_clock::now() < deadline &&
         socket_.read(bytes.data(), bytes.size(), deadline).value_or(0) > 0) {
  }
}

}  // namespace atelier::http
