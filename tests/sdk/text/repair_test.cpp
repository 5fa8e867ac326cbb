#include "atelier/text/repair.h"

#include "support/catch.h"

using namespace atelier::text;

TEST_CASE("Texts are as they were meant", "[text]") {
  CHECK(fix_text("色调艳丽，过曝　静态") == "色调艳丽,过曝 静态");
  CHECK(fix_text("“curly” ‘quotes’ ﬁ") == "\"curly\" 'quotes' fi");
  CHECK(fix_text("sÃ³ cafÃ©") == "só café");
  CHECK(fix_text("e\u0301") == "é");
  CHECK(fix_text("a\r\nb\rc") == "a\nb\nc");
  CHECK(fix_text("\x1b[36;44mblue\x1b[0m\x07") == "blue");
  CHECK(fix_text("&amp;lt;") == "<");
  CHECK(fix_text("<b>&amp;</b>") == "<b>&amp;</b>");
  CHECK(fix_text("").empty());
}

TEST_CASE("Surrogates become one character, and what is not UTF-8 is replaced", "[text]") {
  CHECK(fix_text("\xED\xA0\xBD\xED\xB2\xA9") == "\U0001F4A9");
  CHECK(fix_text("a\xED\xA0\xBD-") == "a\uFFFD-");
  CHECK(fix_text("a\xFF-") == "a\uFFFD-");
  CHECK(fix_text("a\xE2\x82-") == "a\uFFFD-");
}

TEST_CASE("References and white space are made plain", "[text]") {
  CHECK(unescape_html("&lt;&#60;&#x3C;&ampx &nosuch; &#0;") == "<<<&x &nosuch; \uFFFD");
  CHECK(collapse_spaces(" \ta\u00A0\u3000b\n\n") == "a b");
  CHECK(collapse_spaces(" \n ").empty());
}
