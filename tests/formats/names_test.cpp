#include <catch2/catch.hpp>
#include <string>

#include "formats/escape.h"
#include "formats/glob.h"
#include "formats/utf8.h"

namespace atelier::formats {

TEST_CASE("A name is quoted and what a terminal would obey is escaped", "[escape]") {
  CHECK(quote_and_escape("blocks.0.weight") == "\"blocks.0.weight\"");
  CHECK(quote_and_escape("") == "\"\"");
  CHECK(quote_and_escape("a\"b\\c") == R"("a\"b\\c")");
  CHECK(quote_and_escape("a\nb\tc\rd") == R"("a\nb\tc\rd")");
  CHECK(quote_and_escape(std::string_view("a\0b", 3)) == R"("a\0b")");
  CHECK(quote_and_escape("\x1b[31m") == R"("\x1b[31m")");
  CHECK(quote_and_escape("\x7f") == R"("\x7f")");
  CHECK(quote_and_escape("权重 é") == "\"权重 é\"");
  CHECK(quote_and_escape("\xff\xc3") == R"("\xff\xc3")");
  CHECK(quote_and_escape("\xc2\x9b") == R"("\u009b")");
  // Turns the direction of the text: what is shown would not be what is read.
  CHECK(quote_and_escape("a\u202egnp") == R"("a\u202egnp")");
}

TEST_CASE("A long name is cut to the characters asked for", "[escape]") {
  const std::string exact(118, 'a');
  CHECK(quote_and_escape(exact) == '"' + exact + '"');
  CHECK(quote_and_escape(exact + "b") == '"' + std::string(117, 'a') + "…\"");
  CHECK(quote_and_escape(std::string(5000, '\n')).size() < 130);
  // An escape is never cut in half.
  CHECK(quote_and_escape("abc\x01\x01", 10) == R"("abc\x01…")");
  CHECK(quote_and_escape("权重权重权重", 6) == "\"权重权…\"");
  CHECK(quote_and_escape("abc", 0) == "\"…\"");
}

TEST_CASE("UTF-8 is read strictly", "[utf8]") {
  const auto is_valid = [](std::string_view text) {
    return find_invalid_utf8(text) == std::string_view::npos;
  };
  CHECK(is_valid(""));
  CHECK(is_valid("a é 权 😀 \U0010FFFF"));
  CHECK_FALSE(is_valid("\xc0\x80"));          // overlong
  CHECK_FALSE(is_valid("\xe0\x80\x80"));      // overlong
  CHECK_FALSE(is_valid("\xf0\x80\x80\x80"));  // overlong
  CHECK_FALSE(is_valid("\xed\xa0\x80"));      // surrogate
  CHECK_FALSE(is_valid("\xf4\x90\x80\x80"));  // above U+10FFFF
  CHECK_FALSE(is_valid("\xc3"));
  CHECK_FALSE(is_valid("\x80"));
  CHECK(find_invalid_utf8("ab\xff") == 2);
  for (const uint32_t code_point :
       {0x0U, 0x7FU, 0x80U, 0x7FFU, 0x800U, 0xFFFFU, 0x10000U, 0x10FFFFU}) {
    std::string text;
    append_utf8(text, code_point);
    const Utf8Char decoded = decode_utf8(text, 0);
    CHECK(decoded.valid);
    CHECK(decoded.code_point == code_point);
    CHECK(decoded.length == text.size());
  }
}

TEST_CASE("A glob matches whole names", "[glob]") {
  CHECK(glob_match("*", ""));
  CHECK(glob_match("*", "anything.at/all"));
  CHECK(glob_match("", ""));
  CHECK_FALSE(glob_match("", "a"));
  CHECK(glob_match("blocks.*.attn.*.weight", "blocks.12.attn.to_q.weight"));
  CHECK_FALSE(glob_match("blocks.*.attn", "blocks.12.attn.to_q"));
  CHECK(glob_match("a?c", "abc"));
  CHECK_FALSE(glob_match("a?c", "ac"));
  CHECK(glob_match("**a**", "bab"));
  CHECK(glob_match("*.safetensors", ".safetensors"));
  CHECK(glob_match("a*b*c", "a__b_b__c"));
  CHECK_FALSE(glob_match("a*b*c", "a__c_b"));
  // Backtracks to the last star only: this ends at once.
  CHECK_FALSE(glob_match("*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
  CHECK(has_glob("a*"));
  CHECK(has_glob("a?"));
  CHECK_FALSE(has_glob("a.b[c]"));
}

TEST_CASE("A name fits one of several globs", "[glob]") {
  CHECK(any_glob_matches("*-i2v-*|*-s2v-*", "wan2.2-s2v-14b"));
  CHECK(any_glob_matches("*-i2v-*|*-s2v-*", "wan2.1-i2v-14b"));
  CHECK_FALSE(any_glob_matches("*-i2v-*|*-s2v-*", "wan2.1-t2v-14b"));
  CHECK(any_glob_matches("*", "a"));
  CHECK(any_glob_matches("a||b", ""));
  CHECK_FALSE(any_glob_matches("a|b", "a|b"));
}

}  // namespace atelier::formats
