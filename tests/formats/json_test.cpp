#include "formats/json.h"

#include <catch2/catch.hpp>
#include <string>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

std::string tag_of_json(std::string_view text, const JsonLimits& limits = {}) {
  return error_of([&] { parse_json(text, limits); }).tag;
}

std::string nested_json(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

}  // namespace

TEST_CASE("JSON is read into a tree", "[json]") {
  const nlohmann::json tree = parse_json(
      " {\"a\": [1, -2, 2.5, true, null, \"x\\n\\u00e9\\ud83d\\ude00\"], \"b\": {\"c\": {}, \"d\": "
      "[]}}\r\n");
  CHECK(tree["a"][0] == 1);
  CHECK(tree["a"][1] == -2);
  CHECK(tree["a"][2] == 2.5);
  CHECK(tree["a"][3] == true);
  CHECK(tree["a"][4].is_null());
  CHECK(tree["a"][5] == "x\né😀");
  CHECK(tree["b"]["c"].is_object());
  CHECK(tree["b"]["d"].is_array());
  CHECK(parse_json("18446744073709551615") == 18446744073709551615ULL);
  CHECK(parse_json("18446744073709551616").is_number_float());
  CHECK(parse_json("\"\"") == "");
  CHECK(parse_json("{\"\": 1}")[""] == 1);
}

TEST_CASE("What is not JSON is refused", "[json]") {
  for (const char* text : {"",
                           " ",
                           "{",
                           "}",
                           "[1,]",
                           "{\"a\":1,}",
                           "{\"a\"}",
                           "{a:1}",
                           "{'a':1}",
                           "[1 2]",
                           "01",
                           "+1",
                           ".5",
                           "1.",
                           "1e",
                           "-",
                           "NaN",
                           "Infinity",
                           "nul",
                           "True",
                           "\"a",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\t\"",
                           "1 1",
                           "{}{}",
                           "// c\n1",
                           "/* c */ 1",
                           "\xEF\xBB\xBF{}",
                           "1e400",
                           "[1]]"}) {
    CAPTURE(text);
    CHECK(tag_of_json(text) == "JSON_SYNTAX");
  }
  CHECK(tag_of_json(std::string_view("{}\0", 3)) == "JSON_SYNTAX");
  CHECK(tag_of_json(std::string_view("\"a\0b\"", 5)) == "JSON_SYNTAX");
  for (const char* text : {"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xc3\""}) {
    CHECK(tag_of_json(text) == "JSON_UTF8");
  }
  for (const char* text : {R"("\ud800")", R"("\ud800\u0041")", R"("\udc00")"}) {
    CHECK(tag_of_json(text) == "JSON_SYNTAX");
  }
}

TEST_CASE("A key that is given twice is refused, also when one is escaped", "[json]") {
  CHECK(tag_of_json(R"({"a":1,"a":2})") == "JSON_DUPLICATE_KEY");
  CHECK(tag_of_json(R"({"a":1,"\u0061":2})") == "JSON_DUPLICATE_KEY");
  CHECK(tag_of_json(R"({"x":[{"b":{},"b":[]}]})") == "JSON_DUPLICATE_KEY");
  CHECK(tag_of_json(R"({"":1,"":2})") == "JSON_DUPLICATE_KEY");
  CHECK(parse_json(R"({"a":{"a":1},"b":{"a":[{"a":2},{"a":3}]}})")["b"]["a"][1]["a"] == 3);
}

TEST_CASE("Nesting is limited, and the limit itself is allowed", "[json]") {
  CHECK(tag_of_json(nested_json(32)) == "accepted");
  CHECK(tag_of_json(nested_json(33)) == "JSON_DEPTH");
  CHECK(tag_of_json(nested_json(3), {.max_depth = 3}) == "accepted");
  CHECK(tag_of_json("{\"a\":[{}]}", {.max_depth = 2}) == "JSON_DEPTH");
  CHECK(tag_of_json(nested_json(1'000'000)) == "JSON_DEPTH");
  CHECK(tag_of_json("[[],[],[],[]]", {.max_depth = 2}) == "accepted");
}

TEST_CASE("The number of values is limited", "[json]") {
  CHECK(tag_of_json("[1,2,3]", {.max_values = 4}) == "accepted");
  CHECK(tag_of_json("[1,2,3]", {.max_values = 3}) == "JSON_TOO_LARGE");
  CHECK(tag_of_json("{\"a\":1}", {.max_values = 2}) == "JSON_TOO_LARGE");
}

TEST_CASE("A JSON error says byte and line", "[json]") {
  const ParseError error = error_of([] { parse_json("{\n  \"a\": 1,\n  \"b\": x\n}"); });
  CHECK(error.byte == 19);
  CHECK(error.line == 3);
  const ParseError twice = error_of([] { parse_json("{\"k\": 1,\n\n \"k\": 2}"); });
  CHECK(twice.line == 3);
  CHECK(std::string(twice.what()).find("\"k\"") != std::string::npos);
  const ParseError cut = error_of([] { parse_json("[1,\n2"); });
  CHECK(cut.byte == 5);
  CHECK(cut.line == 2);
  // Escapes in the text reach no terminal.
  const ParseError escape = error_of([] { parse_json("[\"\x1b[31m\"]"); });
  CHECK(escape.tag == "JSON_SYNTAX");
}

TEST_CASE("JSON lines are read one by one", "[json]") {
  const auto rows = parse_jsonl("{\"a\":1}\r\n\n  \n[2]\n\"x\"");
  REQUIRE(rows.size() == 3);
  CHECK(rows[0].line == 1);
  CHECK(rows[1].line == 4);
  CHECK(rows[1].value[0] == 2);
  CHECK(rows[2].value == "x");
  CHECK(parse_jsonl("").empty());
  CHECK(parse_jsonl("\n\n").empty());
}

TEST_CASE("A bad JSON line is named and the others are still read", "[json]") {
  const std::string text = "{\"a\":1}\n{\"a\":\n{\"b\":1,\"b\":2}\n{\"c\":3}\n";
  const ParseError first = error_of([&] { parse_jsonl(text); });
  CHECK(first.line == 2);
  CHECK(first.byte == 13);
  std::vector<ParseError> errors;
  const auto rows = parse_jsonl(text, {}, &errors);
  REQUIRE(rows.size() == 2);
  CHECK(rows[1].line == 4);
  REQUIRE(errors.size() == 2);
  CHECK(errors[0].tag == "JSON_SYNTAX");
  CHECK(errors[1].tag == "JSON_DUPLICATE_KEY");
  CHECK(errors[1].line == 3);
}

TEST_CASE("Every cut of a JSON text is refused", "[json]") {
  const std::string text = R"({"a":[1,-2.5e3,{"b":"\u00e9x"}],"c":null,"d":true})";
  CHECK(tag_of_json(text) == "accepted");
  for (size_t i = 0; i < text.size(); ++i) CHECK(tag_of_json(text.substr(0, i)) != "accepted");
}

}  // namespace atelier::formats
