#include "formats/escape.h"

#include <cstdint>

#include "formats/utf8.h"

namespace atelier::formats {
namespace {

// Code points that move the cursor, hide text or turn its direction.
bool is_unprintable(uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0) || code_point == 0x061C ||
         (code_point >= 0x200B && code_point <= 0x200F) ||
         (code_point >= 0x2028 && code_point <= 0x202E) ||
         (code_point >= 0x2060 && code_point <= 0x206F) || code_point == 0xFEFF ||
         (code_point >= 0xE0000 && code_point <= 0xE007F);
}

std::string hex_escape(char kind, uint32_t value, int digits) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = {'\\', kind};
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) {
    text.push_back(kHex[(value >> shift) & 15]);
  }
  return text;
}

std::string escape_code_point(uint32_t code_point) {
  switch (code_point) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\0':
      return "\\0";
    default:
      break;
  }
  if (code_point < 0x80) return hex_escape('x', code_point, 2);
  return code_point < 0x10000 ? hex_escape('u', code_point, 4) : hex_escape('U', code_point, 8);
}

}  // namespace

std::string quote_and_escape(std::string_view name, size_t max_chars) {
  if (max_chars < 3) max_chars = 3;
  std::string text = "\"";
  size_t chars = 1;
  // Where the text may be cut so that the mark and the closing quote still fit.
  size_t cut = 1;
  for (size_t at = 0; at < name.size();) {
    std::string piece;
    size_t piece_chars = 0;
    const Utf8Char next = decode_utf8(name, at);
    if (!next.valid) {
      piece = hex_escape('x', static_cast<unsigned char>(name[at]), 2);
      piece_chars = piece.size();
    } else if (next.code_point == '"' || next.code_point == '\\') {
      piece = {'\\', static_cast<char>(next.code_point)};
      piece_chars = 2;
    } else if (is_unprintable(next.code_point)) {
      piece = escape_code_point(next.code_point);
      piece_chars = piece.size();
    } else {
      piece = name.substr(at, next.length);
      piece_chars = 1;
    }
    if (chars + piece_chars + 1 > max_chars) {
      text.resize(cut);
      return text + "…\"";
    }
    text += piece;
    chars += piece_chars;
    if (chars + 2 <= max_chars) cut = text.size();
    at += next.length;
  }
  return text + "\"";
}

}  // namespace atelier::formats
