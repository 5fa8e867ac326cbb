#include "formats/list.h"

#include <catch2/catch.hpp>

using atelier::formats::parse_list;
using List = std::vector<std::string>;

TEST_CASE("A list is cut at its commas, or is JSON", "[list]") {
  CHECK(parse_list("").empty());
  CHECK(parse_list("a") == List{"a"});
  CHECK(parse_list(" to_q, to_k ,,to_out.0\n") == List{"to_q", "to_k", "to_out.0"});
  CHECK(parse_list(R"(["a","b"])") == List{"a", "b"});
  CHECK(parse_list(R"( ["a, b", ["c", "d e"]] )") == List{"a, b", "c", "d e"});
  CHECK(parse_list("[]").empty());
  // A glob begins like JSON and ends otherwise.
  CHECK(parse_list("[ab]*.safetensors,c") == List{"[ab]*.safetensors", "c"});
}

TEST_CASE("A list that looks like JSON and is none is refused", "[list]") {
  using atelier::formats::ParseError;
  CHECK_THROWS_AS(parse_list("[a,b]"), ParseError);
  CHECK_THROWS_AS(parse_list(R"(["a", 1])"), ParseError);
  CHECK_THROWS_AS(parse_list(R"([{"a": "b"}])"), ParseError);
}
