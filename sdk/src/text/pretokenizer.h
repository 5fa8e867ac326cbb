// Cuts text into the words inside which a byte-pair tokenizer merges.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_files.h"

namespace atelier::text {

// A split pattern out of a list of known ones: a file's own regular expressions are never run.
class SplitPattern {
 public:
  // The pattern of tokenizers that split inside their ByteLevel step.
  static const std::string_view kByteLevel;
  // The pattern with single digits, in one step before a ByteLevel one.
  static const std::string_view kSingleDigits;

  // Throws Error{kUnsupported} that shows `pattern` when it is not in the list.
  explicit SplitPattern(std::string_view pattern);

  // Appends the parts of valid UTF-8 to `parts`; together they are the text.
  void split(std::string_view text, std::vector<std::string_view>& parts) const;

 private:
  std::shared_ptr<const void> code_;
};

// Immutable after construction.
class Pretokenizer {
 public:
  // Throws Error{kUnsupported} for steps other than known splits with one ByteLevel at the end, or
  // without it splits behind a literal text.
  explicit Pretokenizer(const std::vector<formats::PreTokenizerStep>& steps);

  // Whether words are spelled in bytes: there is a ByteLevel step.
  bool is_byte_level() const { return is_byte_level_; }

  // Calls `use` for each word, in order; the view is valid during the call.
  void for_each_word(std::string_view text,
                     const std::function<void(std::string_view word)>& use) const;

 private:
  void read_byte_level(const std::vector<formats::PreTokenizerStep>& steps);
  void read_literal(const std::vector<formats::PreTokenizerStep>& steps);

  bool is_byte_level_;
  std::vector<std::string> ends_;  // a word ends behind each of these; not byte-level
  std::vector<SplitPattern> splits_;
  bool add_prefix_space_ = false;
  std::vector<SplitPattern> last_split_;  // after the prefix space; none or one
};

}  // namespace atelier::text
