#include "formats/utf8.h"

namespace atelier::formats {

Utf8Char decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {first, 1, true};
  size_t length = 0;
  uint32_t smallest = 0;
  uint32_t code_point = 0;
  if ((first & 0xE0) == 0xC0) {
    length = 2, smallest = 0x80, code_point = first & 0x1FU;
  } else if ((first & 0xF0) == 0xE0) {
    length = 3, smallest = 0x800, code_point = first & 0x0FU;
  } else if ((first & 0xF8) == 0xF0) {
    length = 4, smallest = 0x10000, code_point = first & 0x07U;
  } else {
    return {};
  }
  if (text.size() - at < length) return {};
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {};
    code_point = (code_point << 6) | (byte(at + i) & 0x3FU);
  }
  if (code_point < smallest || code_point > 0x10FFFF) return {};
  if (code_point >= 0xD800 && code_point <= 0xDFFF) return {};
  return {code_point, length, true};
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Char next = decode_utf8(text, at);
    if (!next.valid) return at;
    at += next.length;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& text, uint32_t code_point) {
  const auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace atelier::formats
