// SentencePiece models: tokenizer.model, spiece.model. A protobuf message (ModelProto).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/chars_map.h"
#include "formats/parse_error.h"

namespace atelier::formats {

enum class PieceType : uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct SentencePiece {
  std::string text;  // UTF-8, not empty; "<0x0A>" where it stands for a byte
  // Finite. Byte-pair models merge the largest first, of unigram models it is a log-probability.
  float score = 0;
  PieceType type = PieceType::kNormal;
};

enum class SentencePieceKind : uint8_t { kUnigram = 1, kBpe, kWord, kChar };

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

// The byte that "<0x0A>" stands for, and the other way round.
std::optional<uint8_t> byte_of_piece(std::string_view text);
std::string piece_of_byte(uint8_t byte);

}  // namespace atelier::formats
