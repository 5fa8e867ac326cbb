#include "formats/http_fields.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "formats/escape.h"
#include "formats/utf8.h"

namespace atelier::formats {

namespace {

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_token_char(char c) {
  return is_alphanumeric(c) ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

// Whole numbers in digits alone; nullopt also where they are too large.
template <typename T>
std::optional<T> number_of(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (text.empty() || failure != std::errc() || stop != end) return std::nullopt;
  return value;
}

// Reads a field from its start; all that is left over is `rest`.
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : whole_(text), rest_(text) {
    if (find_invalid_utf8(text) != std::string_view::npos) fail("is not UTF-8");
    if (std::any_of(text.begin(), text.end(), [](char c) {
          return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F;
        }))
      fail("holds a control character");
  }

  bool is_over() {
    skip_blanks();
    return rest_.empty();
  }
  // A media type has a slash between two words.
  std::string word() {
    skip_blanks();
    size_t length = 0;
    while (length < rest_.size() && (is_token_char(rest_[length]) || rest_[length] == '/'))
      ++length;
    return lower_case(take(length, "has no value"));
  }
  std::string name() {
    skip_blanks();
    return lower_case(take(token_length(), "has a parameter without a name"));
  }
  void expect(char c) {
    skip_blanks();
    if (rest_.empty() || rest_.front() != c)
      fail(std::string("has no '") + c + "' where one belongs");
    rest_.remove_prefix(1);
  }
  std::string value() {
    skip_blanks();
    if (rest_.empty() || rest_.front() != '"')
      return std::string(take(token_length(), "has a parameter without a value"));
    return quoted();
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw ParseError("HTTP_FIELD", quote_and_escape(whole_) + " " + what);
  }

 private:
  void skip_blanks() {
    while (!rest_.empty() && is_blank(rest_.front())) rest_.remove_prefix(1);
  }
  size_t token_length() const {
    return static_cast<size_t>(std::find_if_not(rest_.begin(), rest_.end(), is_token_char) -
                               rest_.begin());
  }
  std::string_view take(size_t length, const char* what_if_none) {
    if (length == 0) fail(what_if_none);
    const std::string_view taken = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return taken;
  }
  // A backslash stands for itself but before a quote or another one: programs write paths so.
  std::string quoted() {
    std::string text;
    for (size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == '"') {
        rest_.remove_prefix(i + 1);
        return text;
      }
      if (rest_[i] == '\\' && i + 1 < rest_.size() && (rest_[i + 1] == '"' || rest_[i + 1] == '\\'))
        ++i;
      text += rest_[i];
    }
    fail("has a quote that is not closed");
  }

  std::string_view whole_, rest_;
};

}  // namespace

std::string lower_case(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lowered;
}

MediaType parse_media_type(std::string_view text) {
  FieldReader reader(text);
  MediaType read{.type = reader.word()};
  while (!reader.is_over()) {
    reader.expect(';');
    if (reader.is_over()) break;
    const std::string name = reader.name();
    reader.expect('=');
    if (!read.parameters.emplace(name, reader.value()).second) reader.fail("has a parameter twice");
  }
  return read;
}

bool is_http_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

std::optional<ByteRange> parse_byte_range(std::string_view text, uint64_t size) {
  constexpr std::string_view kUnit = "bytes=";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const std::string_view first = text.substr(0, dash), last = text.substr(dash + 1);
  const auto begin = number_of<uint64_t>(first), end = number_of<uint64_t>(last);
  if ((!begin && !first.empty()) || (!end && !last.empty()) || (!begin && !end))
    return std::nullopt;
  if (begin && end && *end < *begin) return std::nullopt;
  if (begin ? *begin >= size : *end == 0 || size == 0)
    throw ParseError("HTTP_RANGE", "the range lies outside the " + std::to_string(size) + " bytes");
  if (!begin) return ByteRange{.begin = size - std::min(*end, size), .end = size};
  return ByteRange{.begin = *begin, .end = end ? std::min(*end, size - 1) + 1 : size};
}

std::optional<Authority> parse_authority(std::string_view text) {
  Authority read;
  std::string_view host = text, port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return std::nullopt;
    host = text.substr(1, close - 1);
    if (host.empty() || host.find_first_not_of("0123456789abcdefABCDEF:.") != host.npos)
      return std::nullopt;
    port = text.substr(close + 1);
    has_port = !port.empty();
    if (has_port && port.front() != ':') return std::nullopt;
    if (has_port) port.remove_prefix(1);
  } else {
    const size_t colon = text.find(':');
    has_port = colon != std::string_view::npos;
    if (has_port) {
      host = text.substr(0, colon);
      port = text.substr(colon + 1);
    }
    const auto is_of_name = [](char c) {
      return is_alphanumeric(c) || c == '-' || c == '.' || c == '_';
    };
    if (host.empty() || !std::all_of(host.begin(), host.end(), is_of_name)) return std::nullopt;
  }
  if (has_port) {
    read.port = number_of<uint16_t>(port);
    if (!read.port) return std::nullopt;
  }
  read.host = lower_case(host);
  return read;
}

std::optional<WebOrigin> parse_origin(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == std::string_view::npos) return std::nullopt;
  const std::string_view scheme = text.substr(0, colon);
  if (scheme.empty() || !std::all_of(scheme.begin(), scheme.end(), [](char c) {
        return is_alphanumeric(c) || c == '+' || c == '-' || c == '.';
      }))
    return std::nullopt;
  const auto authority = parse_authority(text.substr(colon + 3));
  if (!authority) return std::nullopt;
  return WebOrigin{.scheme = lower_case(scheme), .authority = *authority};
}

}  // namespace atelier::formats
