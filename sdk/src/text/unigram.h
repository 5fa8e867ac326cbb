// Cuts a text into the pieces whose scores have the largest sum.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/byte_trie.h"

namespace atelier::text {

// Viterbi's algorithm over the pieces that are found at each character. Immutable after
// construction.
class Unigram {
 public:
  struct Piece {
    std::string_view text;
    uint32_t id;
    double score;
  };
  struct Rules {
    uint32_t unknown;      // what stands for characters that are no piece
    double unknown_score;  // of one such character
    // Sums are float32, as SentencePiece makes them; otherwise float64, as Hugging Face's
    // tokenizers. What they round away decides between cuts of equal scores.
    bool is_single_precision;
    // Characters that are no piece become the tokens of their bytes; kNone: there is none for this
    // byte. Empty: they become `unknown`.
    std::optional<std::array<uint32_t, 256>> byte_ids = {};
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  // The first piece of several with equal texts holds.
  Unigram(const std::vector<Piece>& pieces, const Rules& rules);

  // Appends the tokens of valid UTF-8, shorter than 2^32 bytes, in time linear in its length times
  // the longest piece. Unknown characters that follow each other are one unknown token.
  void append_tokens(std::string_view text, std::vector<int64_t>& ids) const;

 private:
  // The best way to what comes before a place.
  struct Path {
    double score = 0;
    uint32_t begin = kNone;  // of its last piece
    uint32_t id = 0;         // of its last piece
  };

  std::vector<Path> find_paths(std::string_view text) const;
  void append_unknown(std::string_view text, std::vector<int64_t>& ids) const;

  ByteTrie pieces_;  // their values are places in ids_ and scores_
  std::vector<uint32_t> ids_;
  std::vector<double> scores_;
  Rules rules_;
};

}  // namespace atelier::text
