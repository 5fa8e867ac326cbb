// Merges the bytes or characters of a word into tokens.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/json_reader.h"
#include "formats/tokenizer_files.h"

namespace atelier::text {

struct TokenHash {
  using is_transparent = void;
  size_t operator()(std::string_view token) const { return formats::KeyedHash()(token); }
};
using TokenIds = std::unordered_map<std::string, uint32_t, TokenHash, std::equal_to<>>;

// Byte-pair encoding. Immutable after construction.
class Bpe {
 public:
  // What a word is made of before merges: bytes, each spelled as a printable character, or
  // characters; one that the vocabulary lacks is then its bytes, spelled "<0x0A>".
  enum class Alphabet { kBytes, kCharacters };

  // Memory for append_tokens(), to be used again for the next word.
  struct Scratch {
    struct Symbol {
      uint32_t id;
      uint32_t previous, next;  // kNone at the ends
      uint32_t rank;            // of the merge with the next symbol; kNone: there is none
      uint32_t joined;          // what that merge gives
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> queue;  // a heap of rank << 32 | place of the left symbol
    std::string spelling;
  };

  // `vocabulary` must outlive this object. Throws Error{kUnsupported} or Error{kDataLoss}.
  Bpe(const formats::BpeModel& model, const TokenIds& vocabulary, Alphabet alphabet);

  // Appends the tokens of one word, valid UTF-8, in O(n log n) of its length, which is below 2^31
  // bytes.
  void append_tokens(std::string_view word, Scratch& scratch, std::vector<int64_t>& ids) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Merge {
    uint64_t pair = UINT64_MAX;  // left << 32 | right
    uint32_t rank = 0;
    uint32_t joined = 0;
  };

  void find_bytes(const formats::BpeModel& model);
  void add_symbol(uint32_t id, Scratch& scratch) const;
  void split(std::string_view word, Scratch& scratch) const;
  void merge_all(Scratch& scratch) const;
  // Returns where `pair` stands, or the free place that would hold it.
  size_t find(uint64_t pair) const;
  void find_merge(Scratch& scratch, uint32_t left) const;

  const TokenIds& vocabulary_;
  std::vector<Merge> merges_;  // open addressing; a power of two, at most half full
  uint64_t hash_key_;
  std::array<uint32_t, 256> byte_ids_;
  std::array<std::string, 256> byte_spellings_;
  Alphabet alphabet_;
  bool ignores_merges_;
};

}  // namespace atelier::text
