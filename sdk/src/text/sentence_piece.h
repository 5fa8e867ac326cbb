// Cuts text into the pieces of a SentencePiece model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/sentencepiece_model.h"
#include "text/bpe.h"
#include "text/byte_trie.h"
#include "text/unigram.h"

namespace atelier::text {

// Immutable after construction.
class SentencePieceEncoder {
 public:
  // Throws Error{kUnsupported} when the model is neither byte-pair nor unigram.
  explicit SentencePieceEncoder(formats::SentencePieceModel model);

  // Appends the pieces of any bytes, fewer than 2^29; a byte that is not UTF-8 counts as U+FFFD.
  // Symbols of the model's user are cut out; control symbols are plain text. Takes O(n log n) for
  // merges, and O(n) for a unigram model whose pieces are bounded.
  void append_tokens(std::string_view text, std::vector<int64_t>& ids) const;

  // The id of one piece, control symbols and bytes included.
  std::optional<int64_t> id(std::string_view piece) const;
  int64_t size() const { return static_cast<int64_t>(model_.pieces.size()); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // A piece of the normalised text; empty when it has become part of the one before.
  struct Symbol {
    std::string_view text;
    uint32_t previous, next;  // kNone at the ends
    bool is_whole;            // of the user: not merged
  };
  // Two neighbours, and how long they were together.
  struct Merge {
    float score;
    uint32_t left, right;
    size_t length;
    bool operator<(const Merge& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  // The symbols of one text, and the merges that can be made.
  struct Work {
    std::vector<Symbol> symbols;
    std::vector<Merge> queue;  // a heap
    // What a piece that is not for use was made of.
    std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>> parts;
  };

  Unigram make_unigram() const;
  std::string normalize(std::string_view text) const;
  std::pair<std::string_view, size_t> normalize_first(std::string_view text) const;
  void cut(std::string_view text, Work& work) const;
  void find_merge(Work& work, uint32_t left, uint32_t right) const;
  void merge_all(Work& work) const;
  void append(std::string_view piece, const Work& work, bool& follows_unknown,
              std::vector<int64_t>& ids) const;

  formats::SentencePieceModel model_;
  TokenIds pieces_;    // those that merges may give
  TokenIds reserved_;  // control symbols, bytes, and what is unknown
  ByteTrie symbols_;   // of the user
  std::array<uint32_t, 256> byte_ids_{};
  size_t longest_ = 0;              // bytes of a piece
  std::optional<Unigram> unigram_;  // none: merges
};

}  // namespace atelier::text
