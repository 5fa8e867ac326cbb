// Byte-level BPE, as published in tokenizer.json or in vocab.json and merges.txt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/export.h"

namespace atelier::text {

// Immutable after construction: encode() may be called from several threads.
class ATELIER_API Tokenizer {
 public:
  // `path`: a tokenizer.json, or a folder that holds one, or vocab.json with merges.txt (and
  // tokenizer_config.json or added_tokens.json with the added tokens). Where both are there,
  // tokenizer.json is read. Throws Error{kNotFound} naming what is missing, Error{kDataLoss} naming
  // file and place, Error{kUnsupported} for another kind of tokenizer.
  static std::shared_ptr<const Tokenizer> load(const std::string& path);

  ~Tokenizer();

  // Token ids of UTF-8 text: added tokens are cut out first, the rest is normalised, split and
  // merged. Nothing is put before or after. Invalid UTF-8 is replaced by U+FFFD.
  std::vector<int64_t> encode(std::string_view text) const;

  // The id of one token, added tokens included.
  std::optional<int64_t> id(std::string_view token) const;

  int64_t size() const;  // one more than the largest id

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atelier::text
