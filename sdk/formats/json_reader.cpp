#include "formats/json_reader.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "formats/escape.h"
#include "formats/git_lfs.h"

namespace atelier::formats {
namespace {

using nlohmann::json;

// Walks over the text and leaves its position where the handler can read it.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** shared) : at_(at), shared_(shared) {}

  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *shared_ = ++at_;
    return *this;
  }
  Cursor operator++(int) {
    Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }
  bool operator!=(const Cursor& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** shared_;
};

// nlohmann's message without its own position and without the raw text that it quotes.
std::string reason_of(const std::string& what) {
  std::string reason = what;
  if (const size_t colon = reason.find("column "); colon != std::string::npos) {
    if (const size_t start = reason.find(": ", colon); start != std::string::npos) {
      reason = reason.substr(start + 2);
    }
  } else if (const size_t bracket = reason.find("] "); bracket != std::string::npos) {
    reason = reason.substr(bracket + 2);
  }
  // What it quotes may be of any length; its end is told behind.
  for (const char* quote : {"; last read:", " parsing '"}) {
    if (const size_t begin = reason.find(quote); begin != std::string::npos) reason.resize(begin);
  }
  return reason;
}

class Events {
 public:
  Events(std::string_view text, const JsonRules& rules, JsonHandler& handler, const char** position)
      : text_(text), rules_(rules), handler_(handler), position_(position) {}

  bool null() {
    handler_.on_null();
    return true;
  }
  bool boolean(bool value) {
    handler_.on_boolean(value);
    return true;
  }
  bool number_integer(int64_t value) {
    handler_.on_negative(value);
    return true;
  }
  bool number_unsigned(uint64_t value) {
    handler_.on_unsigned(value);
    return true;
  }
  bool number_float(double value, const std::string& text) {
    handler_.on_real(value, text);
    return true;
  }
  bool string(std::string& value) {
    handler_.on_string(value);
    return true;
  }
  bool binary(json::binary_t&) { return false; }
  bool start_object(size_t) {
    enter();
    handler_.on_start_object();
    return true;
  }
  bool key(std::string& value) {
    handler_.on_key(value);
    return true;
  }
  bool end_object() {
    --depth_;
    handler_.on_end_object();
    return true;
  }
  bool start_array(size_t) {
    enter();
    handler_.on_start_array();
    return true;
  }
  bool end_array() {
    --depth_;
    handler_.on_end_array();
    return true;
  }

  bool parse_error(size_t read, const std::string& last_token,
                   const nlohmann::detail::exception& error) {
    // `read` counts the offending byte, and one more at the end of the text.
    const size_t byte = std::min(read == 0 ? 0 : read - 1, text_.size());
    std::string message = "is not valid JSON: " + reason_of(error.what());
    const bool is_utf8 = message.find("UTF-8") != std::string::npos;
    if (!last_token.empty()) message += ", near " + quote_and_escape(last_token, 40);
    throw ParseError(rules_.tag_prefix + (is_utf8 ? "UTF8" : "SYNTAX"), message, {}, byte,
                     line_of(text_, byte));
  }

 private:
  void enter() {
    if (++depth_ <= rules_.max_depth) return;
    const size_t byte = static_cast<size_t>(*position_ - text_.data());
    throw ParseError(
        rules_.tag_prefix + "DEPTH",
        "arrays and objects are nested deeper than " + std::to_string(rules_.max_depth), {}, byte,
        line_of(text_, byte));
  }

  std::string_view text_;
  const JsonRules& rules_;
  JsonHandler& handler_;
  const char** position_;
  int depth_ = 0;
};

uint64_t hash_key() {
  static const uint64_t key = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  return key;
}

uint64_t multiply_fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

size_t KeyedHash::operator()(std::string_view text) const {
  const uint64_t key = hash_key();
  uint64_t state = key ^ multiply_fold(text.size() + 0x9E3779B97F4A7C15U, key | 1);
  for (size_t at = 0; at < text.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min<size_t>(8, text.size() - at));
    state = multiply_fold(state ^ word ^ 0xE7037ED1A0B428DBU, key ^ 0x8EBC6AF09C88C6E3U) + word;
  }
  return multiply_fold(state ^ key, 0x589965CC75374CC3U);
}

void JsonHandler::fail(const std::string& tag, const std::string& message,
                       const std::string& hint) const {
  const auto byte = static_cast<size_t>(position_ - text_.data());
  throw ParseError(tag, message, hint, byte, line_of(text_, byte));
}

uint64_t line_of(std::string_view text, size_t at) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(at, text.size()));
  return 1 + static_cast<uint64_t>(std::count(text.begin(), end, '\n'));
}

void read_json(std::string_view text, const JsonRules& rules, JsonHandler& handler) {
  if (text.data() == nullptr) text = "";
  const auto refuse = [&](const char* kind, const std::string& message, size_t byte) {
    throw ParseError(rules.tag_prefix + kind, message, {}, byte, line_of(text, byte));
  };
  if (const auto pointer = find_git_lfs_pointer(text, rules.tag_prefix)) throw *pointer;
  if (text.substr(0, 3) == "\xEF\xBB\xBF") {
    refuse("SYNTAX", "is not valid JSON: it starts with a byte order mark", 0);
  }
  // nlohmann takes a NUL byte for the end of the text.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    refuse("SYNTAX", "is not valid JSON: it holds a NUL byte", nul);
  }
  handler.text_ = text;
  handler.position_ = text.data();
  Events events(text, rules, handler, &handler.position_);
  json::sax_parse(Cursor(text.data(), &handler.position_),
                  Cursor(text.data() + text.size(), &handler.position_), &events);
}

}  // namespace atelier::formats
