#include "formats/sentencepiece_model.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "formats/escape.h"
#include "formats/git_lfs.h"
#include "formats/json_reader.h"
#include "formats/tokenizer_files.h"
#include "formats/utf8.h"

namespace atelier::formats {
namespace {

enum class Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// The fields of one protobuf message, one after another.
class Message {
 public:
  // `start`: where `bytes` begin in the file.
  explicit Message(std::string_view bytes, uint64_t start = 0) : bytes_(bytes), start_(start) {}

  // Reads the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t tag = varint();
    number_ = tag >> 3;
    wire_ = static_cast<Wire>(tag & 7);
    if (number_ == 0 || number_ >= (1U << 29))
      fail("a field has number " + std::to_string(number_));
    switch (wire_) {
      case Wire::kVarint:
        value_ = varint();
        break;
      case Wire::kFixed64:
        content_ = take(8);
        break;
      case Wire::kFixed32:
        content_ = take(4);
        break;
      case Wire::kBytes:
        content_ = take(varint());
        break;
      default:
        fail("field " + std::to_string(number_) + " has wire type " + std::to_string(tag & 7));
    }
    return true;
  }

  uint64_t number() const { return number_; }
  uint64_t integer() const { return expect(Wire::kVarint), value_; }
  bool flag() const { return integer() != 0; }
  std::string_view bytes() const { return expect(Wire::kBytes), content_; }
  Message message() const { return Message(bytes(), start_ + at_ - content_.size()); }
  float real() const {
    expect(Wire::kFixed32);
    return std::bit_cast<float>(little_endian(content_));
  }

  static uint32_t little_endian(std::string_view four) {
    uint32_t value = 0;
    for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(four[i]);
    return value;
  }

  [[noreturn]] void fail(const std::string& message, const char* tag = "SP_WIRE") const {
    throw ParseError(tag, message, "use the tokenizer file that is published with the model",
                     start_ + at_);
  }

 private:
  void expect(Wire wire) const {
    if (wire_ != wire) fail("field " + std::to_string(number_) + " is of another type");
  }
  std::string_view take(uint64_t length) {
    if (length > bytes_.size() - at_) fail("a field ends behind its message");
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    fail("an integer has more than 10 bytes");
  }

  std::string_view bytes_;
  uint64_t start_;
  size_t at_ = 0;
  uint64_t number_ = 0, value_ = 0;
  Wire wire_ = Wire::kVarint;
  std::string_view content_;
};

SentencePiece read_piece(Message fields, size_t id) {
  SentencePiece piece;
  const std::string name = "piece " + std::to_string(id);
  while (fields.next()) {
    if (fields.number() == 1) {
      piece.text = fields.bytes();
    } else if (fields.number() == 2) {
      piece.score = fields.real();
    } else if (fields.number() == 3) {
      const uint64_t type = fields.integer();
      if (type < 1 || type > 6) fields.fail(name + " has type " + std::to_string(type), "SP_PIECE");
      piece.type = static_cast<PieceType>(type);
    }
  }
  if (piece.text.empty()) fields.fail(name + " has no text", "SP_PIECE");
  if (find_invalid_utf8(piece.text) != std::string_view::npos) {
    fields.fail(name + " " + quote_and_escape(piece.text) + " is not UTF-8", "SP_PIECE");
  }
  if (!std::isfinite(piece.score)) {
    fields.fail(name + " " + quote_and_escape(piece.text) + " has a score that is no number",
                "SP_PIECE");
  }
  return piece;
}

void read_trainer(Message fields, SentencePieceModel& model) {
  while (fields.next()) {
    if (fields.number() == 3) {
      const uint64_t kind = fields.integer();
      if (kind < 1 || kind > 4) fields.fail("model_type is " + std::to_string(kind));
      model.kind = static_cast<SentencePieceKind>(kind);
    } else if (fields.number() == 24) {
      model.whitespace_as_suffix = fields.flag();
    } else if (fields.number() == 35) {
      model.byte_fallback = fields.flag();
    }
  }
}

void read_normalizer(Message fields, SentencePieceModel& model) {
  while (fields.next()) {
    if (fields.number() == 2) {
      model.chars_map = fields.bytes().empty() ? CharsMap() : CharsMap(fields.bytes());
    } else if (fields.number() == 3) {
      model.add_dummy_prefix = fields.flag();
    } else if (fields.number() == 4) {
      model.remove_extra_whitespaces = fields.flag();
    } else if (fields.number() == 5) {
      model.escape_whitespaces = fields.flag();
    }
  }
}

[[noreturn]] void refuse(const std::string& message) {
  throw ParseError("SP_PIECE", message, "use the tokenizer file that is published with the model");
}

bool is_in_text(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined ||
         type == PieceType::kUnused;
}

// Checks the pieces among themselves, and finds the unknown one.
void check_pieces(SentencePieceModel& model) {
  if (model.pieces.empty()) refuse("holds no pieces");
  std::unordered_set<std::string_view, KeyedHash> in_text, reserved;
  std::vector<bool> bytes(256);
  size_t num_unknown = 0, num_bytes = 0;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    const auto name = [&] {
      return "piece " + std::to_string(id) + " " + quote_and_escape(piece.text);
    };
    if (!(is_in_text(piece.type) ? in_text : reserved).insert(piece.text).second) {
      refuse(name() + " is there twice");
    }
    if (piece.type == PieceType::kUnknown) {
      model.unknown = static_cast<uint32_t>(id);
      ++num_unknown;
    }
    if (piece.type != PieceType::kByte) continue;
    const std::optional<uint8_t> byte = byte_of_piece(piece.text);
    if (!byte) refuse(name() + " is no byte");
    bytes[*byte] = true;
    ++num_bytes;
  }
  if (num_unknown != 1) {
    refuse("has " + std::to_string(num_unknown) + " pieces for what is unknown, not 1");
  }
  if (num_bytes != (model.byte_fallback ? 256U : 0U)) {
    refuse("has " + std::to_string(num_bytes) + " pieces for bytes and byte_fallback " +
           (model.byte_fallback ? "on" : "off"));
  }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes) {
  if (const auto pointer = find_git_lfs_pointer(bytes, "SP_")) throw *pointer;
  SentencePieceModel model;
  Message fields(bytes);
  while (fields.next()) {
    if (fields.number() == 1) {
      if (model.pieces.size() >= kMaxTokens) {
        fields.fail("more than " + std::to_string(kMaxTokens) + " pieces", "SP_PIECE");
      }
      model.pieces.push_back(read_piece(fields.message(), model.pieces.size()));
    } else if (fields.number() == 2) {
      read_trainer(fields.message(), model);
    } else if (fields.number() == 3) {
      read_normalizer(fields.message(), model);
    }
  }
  check_pieces(model);
  return model;
}

std::optional<uint8_t> byte_of_piece(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (c < 'A' || c > 'F')) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(is_digit ? c - '0' : c - 'A' + 10);
  }
  return static_cast<uint8_t>(value);
}

std::string piece_of_byte(uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + '>';
}

}  // namespace atelier::formats
