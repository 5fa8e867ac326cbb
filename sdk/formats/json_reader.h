// Strict JSON as a stream of events, for parsers that build no tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "formats/parse_error.h"

namespace atelier::formats {

// Hashes strings with a key drawn once per process, so that a file cannot aim at collisions.
struct KeyedHash {
  // Not noexcept, so that containers keep the hashes instead of making them again.
  size_t operator()(std::string_view text) const;
};

// The names already seen in one object.
class SeenKeys {
 public:
  // Returns false when `key` was there already.
  bool insert(const std::string& key) { return keys_.insert(key).second; }

 private:
  std::unordered_set<std::string, KeyedHash> keys_;
};

struct JsonRules {
  // Nesting of arrays and objects; the outermost counts as 1.
  int max_depth = 32;
  // Added in front of SYNTAX, UTF8 and DEPTH.
  std::string tag_prefix = "JSON_";
};

// Receives one document, token by token. Strings arrive unescaped, are valid UTF-8, and may be
// moved from. A handler refuses a document by throwing; fail() adds where the reader stands.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;

  virtual void on_null() = 0;
  virtual void on_boolean(bool value) = 0;
  virtual void on_unsigned(uint64_t value) = 0;
  // Any integer that is written with a minus sign, also -0.
  virtual void on_negative(int64_t value) = 0;
  // Any number with a fraction or an exponent, or an integer outside 64 bits.
  virtual void on_real(double value, const std::string& text) = 0;
  virtual void on_string(std::string& value) = 0;
  virtual void on_start_object() = 0;
  virtual void on_key(std::string& key) = 0;
  virtual void on_end_object() = 0;
  virtual void on_start_array() = 0;
  virtual void on_end_array() = 0;

  // Throws ParseError at the end of the last token read.
  [[noreturn]] void fail(const std::string& tag, const std::string& message,
                         const std::string& hint = {}) const;

  // Lets `inner` report this handler's position; for handlers that pass events on.
  void share_position(JsonHandler& inner) const {
    inner.text_ = text_;
    inner.position_ = position_;
  }

 private:
  friend void read_json(std::string_view, const JsonRules&, JsonHandler&);
  std::string_view text_;
  const char* position_ = nullptr;
};

// Reads one JSON text (RFC 8259) from the first byte to the last. No byte order mark, NUL, comment,
// NaN, trailing comma or lone surrogate; whitespace may stand before and after. Does not recurse.
// Throws ParseError with the tag prefix and SYNTAX, UTF8 or DEPTH.
void read_json(std::string_view text, const JsonRules& rules, JsonHandler& handler);

// The line, from 1, on which byte `at` of `text` stands.
uint64_t line_of(std::string_view text, size_t at);

}  // namespace atelier::formats
