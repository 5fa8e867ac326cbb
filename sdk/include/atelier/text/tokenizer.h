// Byte-pair and unigram tokenizers: byte-level ones, and those of SentencePiece.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/export.h"

namespace atelier::text {

// What vocab.json with merges.txt leave to the class of their tokenizer, so that a family says it.
// tokenizer.json and SentencePiece models say it themselves.
struct ByteLevelRules {
  // The class tokenizer_config.json must name, with or without "Fast" at the end; empty: any.
  std::string_view tokenizer_class = {};
  bool nfc = false;  // the text is brought into normalisation form C first
  // Words are split as published byte-level tokenizers with single digits do; otherwise as GPT-2's.
  bool single_digits = false;
  // Tokens that are cut out of the text also where no file lists them as added ones.
  std::array<std::string_view, 4> added_tokens = {};
};

// Immutable after construction: encode() may be called from several threads.
class ATELIER_API Tokenizer {
 public:
  // `path`: a tokenizer.json, a SentencePiece model (.model), or a folder that holds
  // tokenizer.json, tokenizer.model, spiece.model, or vocab.json with merges.txt (and
  // tokenizer_config.json or added_tokens.json with the added tokens); of several the first of
  // these is read; vocab.json by `rules` alone. Throws Error{kNotFound} naming what is missing,
  // Error{kDataLoss} naming file and place, Error{kUnsupported} for another kind of tokenizer.
  static std::shared_ptr<const Tokenizer> load(const std::string& path,
                                               const std::optional<ByteLevelRules>& rules = {});

  ~Tokenizer();

  // Token ids of UTF-8 text: added tokens are cut out first, the rest is normalised, split and
  // cut into tokens. Of a SentencePiece model, user-defined symbols are cut out; a text that spells
  // a control symbol is plain text, whose tokenizer.json would cut it out. Nothing is put before or
  // after, whatever the post-processor of tokenizer.json says (T5's "</s>", "<bos>"): a family adds
  // what its encoder was trained with, by id(). Invalid UTF-8 is replaced by U+FFFD: each longest
  // beginning of a character, and each byte for a SentencePiece model.
  std::vector<int64_t> encode(std::string_view text) const;

  // The id of one token, added tokens included.
  std::optional<int64_t> id(std::string_view token) const;

  int64_t size() const;  // one more than the largest id

 private:
  Tokenizer();
  struct Impl;
  class Pipeline;
  class PiecePipeline;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atelier::text
