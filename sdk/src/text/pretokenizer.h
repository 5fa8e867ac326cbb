// Cuts text into the words that a tokenizer's model sees one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
  // without it splits behind a literal text and at white space, and one Metaspace at the end.
  explicit Pretokenizer(const std::vector<formats::PreTokenizerStep>& steps);

  // Whether words are spelled in bytes: there is a ByteLevel step.
  bool is_byte_level() const { return is_byte_level_; }
  // Whether the beginning of the whole text counts: for_each_word() reads `begins_text`.
  bool has_first_word() const { return metaspace_ && metaspace_->prepend == Prepend::kFirst; }

  // Calls `use` for each word, in order; the view is valid during the call.
  void for_each_word(std::string_view text, bool begins_text,
                     const std::function<void(std::string_view word)>& use) const;

 private:
  enum class Prepend { kAlways, kFirst, kNever };
  // Spaces become another character, which is put in front too and begins words.
  struct Metaspace {
    std::string replacement;
    Prepend prepend;
    bool splits;
  };

  void read_byte_level(const std::vector<formats::PreTokenizerStep>& steps);
  void read_literal(const std::vector<formats::PreTokenizerStep>& steps);
  void read_metaspace(const formats::PreTokenizerStep& step);
  std::vector<std::string_view> cut(std::string_view text) const;
  void for_each_spaced_word(const std::vector<std::string_view>& parts, bool begins_text,
                            const std::function<void(std::string_view)>& use) const;

  bool is_byte_level_;
  // A word ends behind each of these, or at white space where it is empty; not byte-level.
  std::vector<std::string> ends_;
  std::optional<Metaspace> metaspace_;
  std::vector<SplitPattern> splits_;
  bool add_prefix_space_ = false;
  std::vector<SplitPattern> last_split_;  // after the prefix space; none or one
};

}  // namespace atelier::text
