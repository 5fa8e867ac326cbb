#include "formats/sentencepiece_model.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string integer(int number, uint64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(value);
}
std::string bytes(int number, const std::string& content) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(content.size()) + content;
}
std::string real(int number, float value) {
  std::string four(4, '\0');
  std::memcpy(four.data(), &value, 4);
  return varint(static_cast<uint64_t>(number) << 3 | 5) + four;
}

std::string piece(const std::string& text, float score = 0, uint64_t type = 1) {
  return bytes(1, bytes(1, text) + real(2, score) + integer(3, type));
}
const std::string kPieces = piece("<unk>", 0, 2) + piece("a") + piece("b", -1) + piece("ab", -2);
const std::string kTrainer = bytes(2, integer(3, 2));

std::string byte_pieces(int count) {
  std::string result;
  for (int byte = 0; byte < count; ++byte) {
    char name[16];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    result += piece(name, 0, 6);
  }
  return result;
}

std::string tag_of_model(const std::string& file) {
  return error_of([&] { parse_sentencepiece_model(file); }).tag;
}

// Units of a double array in which "A" becomes what stands at `value`.
std::string chars_map(uint32_t value, const std::string& replacements) {
  // Node 0 leads to 65 ('A'), whose leaf is at 64.
  std::vector<uint32_t> units(128, 0);
  units[0] = 0;
  units[65] = 'A' | 1U << 8 | 1U << 10;
  units[64] = value;
  std::string blob(4 + 4 * units.size(), '\0');
  const auto length = static_cast<uint32_t>(4 * units.size());
  std::memcpy(blob.data(), &length, 4);
  std::memcpy(blob.data() + 4, units.data(), length);
  return blob + replacements;
}

}  // namespace

TEST_CASE("A SentencePiece model is read", "[sentencepiece]") {
  const std::string normalizer = bytes(3, bytes(1, "identity") + integer(3, 0) + integer(5, 0));
  const std::string unknown_fields =
      integer(100, 5) + real(101, 1) + bytes(102, "x") + varint(103 << 3 | 1) + "12345678";
  const SentencePieceModel model =
      parse_sentencepiece_model(kPieces + kTrainer + unknown_fields + normalizer);
  REQUIRE(model.pieces.size() == 4);
  CHECK(model.pieces[3].text == "ab");
  CHECK(model.pieces[3].score == -2);
  CHECK(model.pieces[0].type == PieceType::kUnknown);
  CHECK(model.unknown == 0);
  CHECK(model.kind == SentencePieceKind::kBpe);
  CHECK_FALSE(model.byte_fallback);
  CHECK_FALSE(model.add_dummy_prefix);
  CHECK(model.remove_extra_whitespaces);
  CHECK_FALSE(model.escape_whitespaces);
  CHECK_FALSE(model.chars_map.longest_match("a"));
}

TEST_CASE("A SentencePiece model without specifications has their defaults", "[sentencepiece]") {
  const SentencePieceModel model = parse_sentencepiece_model(kPieces);
  CHECK(model.kind == SentencePieceKind::kUnigram);
  CHECK(model.add_dummy_prefix);
  CHECK(model.remove_extra_whitespaces);
  CHECK(model.escape_whitespaces);
  CHECK_FALSE(model.whitespace_as_suffix);
}

TEST_CASE("Pieces that do not fit together are refused", "[sentencepiece]") {
  CHECK(tag_of_model("") == "SP_PIECE");
  CHECK(tag_of_model(kTrainer) == "SP_PIECE");
  CHECK(tag_of_model(piece("a")) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + piece("<unk2>", 0, 2)) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + piece("a")) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + piece("a", 0, 3)) == "accepted");  // a control symbol is another one
  CHECK(tag_of_model(kPieces + piece("")) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + piece("\xFF")) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + piece("c", NAN)) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + piece("c", INFINITY)) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + piece("c", 0, 7)) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + piece("c", 0, 0)) == "SP_PIECE");
}

TEST_CASE("Byte fallback needs a piece for each byte", "[sentencepiece]") {
  const std::string fallback = bytes(2, integer(3, 2) + integer(35, 1));
  CHECK(tag_of_model(kPieces + fallback + byte_pieces(256)) == "accepted");
  CHECK(tag_of_model(kPieces + fallback + byte_pieces(255)) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + fallback) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + kTrainer + byte_pieces(256)) == "SP_PIECE");
  CHECK(tag_of_model(kPieces + fallback + byte_pieces(255) + piece("<0xfF>", 0, 6)) == "SP_PIECE");
  CHECK(byte_of_piece("<0x0A>") == uint8_t{10});
  for (const char* text : {"<0x0A", "<0x0A>>", "<0X0A>", "<0x0a>", "<0xG0>", "0x0A>>", ""}) {
    CHECK_FALSE(byte_of_piece(text));
  }
}

TEST_CASE("What is no protobuf message is refused with its place", "[sentencepiece]") {
  const std::string good = kPieces + kTrainer;
  for (size_t size = 1; size < good.size(); ++size) {
    const std::string tag = tag_of_model(good.substr(0, size));
    CHECK((tag == "SP_WIRE" || tag == "SP_PIECE" || tag == "accepted"));
  }
  CHECK(tag_of_model("<!DOCTYPE html>") == "SP_WIRE");
  CHECK(tag_of_model("version https://git-lfs.github.com/spec/v1\n") == "SP_GIT_LFS");
  CHECK(tag_of_model(good + std::string("\x00\x00", 2)) == "SP_WIRE");  // field 0
  CHECK(tag_of_model(good + "\x0B\x0C") == "SP_WIRE");                  // a group
  CHECK(tag_of_model(good + "\x0A\x7F") == "SP_WIRE");                  // longer than the file
  CHECK(tag_of_model(good + "\x20" + std::string(11, '\xFF')) == "SP_WIRE");
  CHECK(tag_of_model(good + integer(1, 5)) == "SP_WIRE");            // a piece that is a number
  CHECK(tag_of_model(good + bytes(1, integer(1, 5))) == "SP_WIRE");  // so is its text
  CHECK(tag_of_model(good + bytes(2, integer(3, 9))) == "SP_WIRE");  // a kind that is not there
  const ParseError error = error_of([&] { parse_sentencepiece_model(good + "\x0A\x7F"); });
  CHECK(error.byte == good.size() + 2);
}

TEST_CASE("A compiled rule replaces the longest beginning", "[sentencepiece]") {
  const std::string blob = chars_map(2, std::string("x\0yz\0", 5));
  const CharsMap map(blob);
  const auto match = map.longest_match("AB");
  REQUIRE(match);
  CHECK(match->length == 1);
  CHECK(match->replacement == "yz");
  CHECK_FALSE(map.longest_match("BA"));
  CHECK_FALSE(map.longest_match(""));
  CHECK_FALSE(CharsMap(chars_map(5, std::string("x\0yz\0", 5))).longest_match("A"));  // behind them
}

TEST_CASE("Compiled rules that are cut off are refused", "[sentencepiece]") {
  const std::string blob = chars_map(0, std::string("x\0", 2));
  const auto tag = [](const std::string& bytes) {
    return error_of([&] { CharsMap map(bytes); }).tag;
  };
  CHECK(tag(blob) == "accepted");
  CHECK(tag(blob.substr(0, 3)) == "SP_CHARSMAP");
  CHECK(tag(blob.substr(0, 100)) == "SP_CHARSMAP");
  CHECK(tag(blob.substr(0, blob.size() - 2)) == "SP_CHARSMAP");
  CHECK(tag(blob.substr(0, blob.size() - 1)) == "SP_CHARSMAP");
  CHECK(tag(blob + std::string("\xFF\0", 2)) == "SP_CHARSMAP");
  CHECK(tag(std::string("\x03\0\0\0abcd\0", 9)) == "SP_CHARSMAP");
  CHECK(tag_of_model(kPieces + bytes(3, bytes(2, "abc"))) == "SP_CHARSMAP");
}

}  // namespace atelier::formats
