#include "host/http/request_reader.h"

// Beast 1.74 asserts in one place what a client may break: five bytes behind a last chunk that
// comes in pieces. What it reads there lies inside the buffer all the same.
#define BOOST_DISABLE_ASSERTS
#include <algorithm>
#include <array>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <new>
#include <stdexcept>
#include <string_view>

#include "formats/http_fields.h"
#include "host/http/server.h"

namespace atelier::http {

namespace beast = boost::beast::http;

namespace {

// Beast's own limit of a header starts anew with each field that ends where a packet does, so a
// head is bounded here, and parsed when all of it has come.
constexpr size_t kMaxHeadBytes = 32 << 10;
constexpr size_t kMaxFields = 100;
constexpr size_t kReadBytes = 64 << 10;
constexpr std::string_view kEndOfHead = "\r\n\r\n";

// Fields that a request may have once: two could be read in two ways.
constexpr std::array kSingle = {"authorization", "content-length", "content-type",
                                "expect",        "host",           "if-range",
                                "origin",        "range",          "transfer-encoding"};

std::string_view view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

void add_field(RequestHead& head, std::string_view name, std::string_view value) {
  const std::string key = formats::lower_case(name);
  const auto [place, is_new] = head.headers.emplace(key, value);
  if (is_new) return;
  if (std::find(kSingle.begin(), kSingle.end(), key) != kSingle.end())
    throw HttpError(400, "the request has the header " + key + " twice");
  place->second.append(", ").append(value);
}

// Where a body ends must be plain: to another program on the way it would end elsewhere.
void check_framing(const RequestHead& head) {
  const auto coding = head.headers.find("transfer-encoding"),
             length = head.headers.find("content-length");
  if (coding != head.headers.end()) {
    if (length != head.headers.end())
      throw HttpError(400, "the request has both a Content-Length and a Transfer-Encoding");
    if (head.is_http_1_0 || formats::lower_case(coding->second) != "chunked")
      throw HttpError(400, "the only Transfer-Encoding is \"chunked\", of HTTP/1.1");
  }
  if (length != head.headers.end() &&
      (length->second.empty() ||
       length->second.find_first_not_of("0123456789") != std::string::npos))
    throw HttpError(400, "Content-Length is no number");
}

}  // namespace

class RequestReader::Parser {
 public:
  RequestHead parse_head(std::string_view text) {
    if (text.find("\r\n ") != text.npos || text.find("\r\n\t") != text.npos)
      throw HttpError(400, "a header goes on in the next line");
    parser_.header_limit(std::numeric_limits<uint32_t>::max());
    parser_.body_limit(std::numeric_limits<uint64_t>::max());
    boost::beast::error_code error;
    parser_.put({text.data(), text.size()}, error);
    if (error == beast::error::bad_version) throw HttpError(505, "this server speaks HTTP/1.1");
    if (error || !parser_.is_header_done())
      throw HttpError(400, "the request is malformed: " + error.message());
    const auto& message = parser_.get();
    RequestHead head{.method = std::string(view(message.method_string())),
                     .target = std::string(view(message.target())),
                     .is_http_1_0 = message.version() < 11,
                     .keeps_alive = parser_.keep_alive()};
    size_t num_fields = 0;
    for (const auto& field : message) {
      if (++num_fields > kMaxFields) throw HttpError(431, "the request has more than 100 headers");
      add_field(head, view(field.name_string()), view(field.value()));
    }
    check_framing(head);
    return head;
  }

  void begin_body(int64_t max_bytes) {
    max_bytes_ = static_cast<uint64_t>(max_bytes);
    if (parser_.content_length().value_or(0) > max_bytes_) fail_too_large();
    parser_.body_limit(max_bytes_);
    parser_.eager(true);
    // Room for all that may come in chunks: pages that are not written take no memory, and growing
    // would take twice the bytes for a while.
    if (parser_.chunked()) reserve();
  }
  bool is_done() const { return parser_.is_done(); }
  // How many bytes it took.
  size_t parse_body(std::string_view bytes) {
    boost::beast::error_code error;
    const size_t taken = parser_.put({bytes.data(), bytes.size()}, error);
    if (error == beast::error::body_limit) fail_too_large();
    if (error && error != beast::error::need_more)
      throw HttpError(400, "the body is malformed: " + error.message());
    return taken;
  }
  std::string take_body() { return std::move(parser_.get().body()); }

 private:
  // A body may come that is smaller than what there is no room for.
  void reserve() {
    try {
      parser_.get().body().reserve(max_bytes_);
    } catch (const std::bad_alloc&) {
    } catch (const std::length_error&) {
    }
  }
  [[noreturn]] void fail_too_large() const {
    throw HttpError(413, "the body has more than " + std::to_string(max_bytes_) + " bytes");
  }

  beast::request_parser<beast::string_body> parser_;
  uint64_t max_bytes_ = 0;
};

RequestReader::RequestReader(Socket& socket, std::chrono::milliseconds timeout)
    : socket_(socket), timeout_(timeout) {}

RequestReader::~RequestReader() = default;

// false: the client has ended it. Throws HttpError 408.
bool RequestReader::receive() {
  const size_t before = buffer_.size();
  buffer_.resize(before + kReadBytes);
  const auto count = socket_.read(buffer_.data() + before, kReadBytes, deadline_);
  buffer_.resize(before + count.value_or(0));
  if (!count) throw HttpError(408, "the request came too slowly");
  return *count > 0;
}

std::optional<std::string> RequestReader::receive_head() {
  deadline_ = std::chrono::steady_clock::now() + timeout_;
  if (buffer_.empty()) {
    try {
      if (!receive()) return std::nullopt;
    } catch (const HttpError&) {
      return std::nullopt;  // no request has begun
    }
    deadline_ = std::chrono::steady_clock::now() + timeout_;
  }
  for (size_t searched = 0;;) {
    while (buffer_.starts_with("\r\n")) buffer_.erase(0, 2);  // as some clients send after a body
    const size_t end = buffer_.find(kEndOfHead, searched);
    if (std::min(end, buffer_.size()) > kMaxHeadBytes)
      throw HttpError(
          431, "the head of the request has more than " + std::to_string(kMaxHeadBytes) + " bytes");
    if (end != std::string::npos) {
      std::string head = buffer_.substr(0, end + kEndOfHead.size());
      buffer_.erase(0, head.size());
      return head;
    }
    searched = buffer_.size() - std::min(buffer_.size(), kEndOfHead.size() - 1);
    if (!receive()) return std::nullopt;
  }
}

std::optional<RequestHead> RequestReader::read_head() {
  const auto text = receive_head();
  if (!text) return std::nullopt;
  parser_ = std::make_unique<Parser>();
  return parser_->parse_head(*text);
}

bool RequestReader::has_body() const {
  return !parser_->is_done();
}

void RequestReader::begin_body(int64_t max_bytes) {
  if (has_body()) parser_->begin_body(max_bytes);
}

std::optional<std::string> RequestReader::read_body() {
  while (!parser_->is_done()) {
    if (!buffer_.empty()) buffer_.erase(0, parser_->parse_body(buffer_));
    if (parser_->is_done()) break;
    if (buffer_.size() >= kReadBytes) throw HttpError(400, "the head of a chunk is too long");
    if (!receive()) return std::nullopt;
  }
  return parser_->take_body();
}

void RequestReader::forget() {
  parser_.reset();
  buffer_ = {};
}

}  // namespace atelier::http
