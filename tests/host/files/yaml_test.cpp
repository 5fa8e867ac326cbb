#include "host/files/yaml.h"

#include "formats/parse_error.h"
#include "support/catch.h"

using namespace atelier;
using files::parse_yaml;
using nlohmann::json;

namespace {

std::string tag_of(const std::string& text) {
  try {
    parse_yaml(text);
  } catch (const formats::ParseError& error) {
    return error.tag;
  }
  return "";
}

}  // namespace

TEST_CASE("Scalars of YAML are what PyYAML makes of them") {
  REQUIRE(
      parse_yaml("{a: 1, b: -2, c: 1.5, d: 1e9, e: yes, f: 'no', g: ~, h: text, i: \"7\", j: }") ==
      json::parse(R"({"a": 1, "b": -2, "c": 1.5, "d": 1e9, "e": true, "f": "no", "g": null,
                          "h": "text", "i": "7", "j": null})"));
  REQUIRE(parse_yaml("a:\n  - 1\n  - b: [x, true]\n") ==
          json::parse(R"({"a": [1, {"b": ["x", true]}]})"));
  REQUIRE(parse_yaml("a: &x {b: 1}\nc: *x\n") == json::parse(R"({"a": {"b": 1}, "c": {"b": 1}})"));
  REQUIRE(parse_yaml("").is_null());
}

TEST_CASE("YAML that is broken, too deep or too much is refused") {
  REQUIRE(tag_of("a: [1, 2") == "YAML_SYNTAX");
  REQUIRE(tag_of("a: *nothing") == "YAML_SYNTAX");
  REQUIRE(tag_of("{[1, 2]: 3}") == "YAML_SYNTAX");
  REQUIRE(tag_of("\xff: 1") == "YAML_SYNTAX");
  REQUIRE(tag_of("a: 1\na: 2") == "YAML_DUPLICATE_KEY");
  REQUIRE(tag_of(std::string(40, '[') + std::string(40, ']')) == "YAML_TOO_LARGE");
  REQUIRE(tag_of(std::string(100'000, '#')) == "YAML_TOO_LARGE");
  // A few lines that stand for billions of values.
  std::string bomb = "a: &a [1,1,1,1,1,1,1,1,1]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 9; ++i) bomb += std::string(i ? "," : "") + "*" + static_cast<char>(c - 1);
    bomb += "]\n";
  }
  REQUIRE(tag_of(bomb) == "YAML_TOO_LARGE");
  // A list that holds itself.
  REQUIRE(tag_of("&a [*a]") == "YAML_TOO_LARGE");
}
