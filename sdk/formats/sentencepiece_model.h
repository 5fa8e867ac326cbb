// SentencePiece models: tokenizer.model, spiece.model. A protobuf message (ModelProto).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

enum class PieceType : uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct SentencePiece {
  std::string text;  // UTF-8, not empty; "<0x0A>" where it stands for a byte
  float score = 0;   // finite; the largest is merged first
  PieceType type = PieceType::kNormal;
};

enum class SentencePieceKind : uint8_t { kUnigram = 1, kBpe, kWord, kChar };

// The compiled rules of a normalizer: what a beginning of the text becomes.
class CharsMap {
 public:
  struct Match {
    size_t length;                 // bytes of the text, more than 0
    std::string_view replacement;  // may be empty
  };

  CharsMap() = default;  // no rules
  // Throws ParseError: SP_CHARSMAP.
  explicit CharsMap(std::string_view bytes);

  // The longest beginning of `text` that has a rule.
  std::optional<Match> longest_match(std::string_view text) const;

 private:
  std::optional<uint32_t> unit(uint32_t at) const;

  std::vector<uint32_t> units_;  // a double array: a trie over bytes
  std::string replacements_;     // each ends with NUL
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;  // a piece's place is its id
  uint32_t unknown = 0;               // id
  SentencePieceKind kind = SentencePieceKind::kUnigram;
  // Characters without a piece become bytes. All 256 of them are there then, and otherwise none.
  bool byte_fallback = false;

  CharsMap chars_map;
  bool add_dummy_prefix = true;          // a space at the beginning, or as below
  bool whitespace_as_suffix = false;     // it comes at the end
  bool remove_extra_whitespaces = true;  // at both ends, and more than one in between
  bool escape_whitespaces = true;        // spaces become U+2581
};

// Throws ParseError: SP_WIRE (not a protobuf message, or a field of another type), SP_PIECE,
// SP_CHARSMAP.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes);

// The byte that "<0x0A>" stands for.
std::optional<uint8_t> byte_of_piece(std::string_view text);

}  // namespace atelier::formats
