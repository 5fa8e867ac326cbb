#include "formats/shard_index.h"

#include <catch2/catch.hpp>
#include <string>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

std::string tag_of_index(std::string_view text) {
  return error_of([&] { parse_shard_index(text); }).tag;
}

std::string with_shard(const std::string& shard) {
  return R"({"weight_map":{"a":")" + shard + R"("}})";
}

}  // namespace

TEST_CASE("An index maps tensors to shards", "[index]") {
  const ShardIndex index = parse_shard_index(
      R"({"metadata":{"total_size":41000000000,"note":[1,{}]},"weight_map":{)"
      R"("b":"model-00002-of-00002.safetensors","a":"model-00001-of-00002.safetensors",)"
      R"("c":"model-00002-of-00002.safetensors"},"other":{"weight_map":{"x":1}}})");
  CHECK(index.weight_map.size() == 3);
  CHECK(index.weight_map.at("c") == "model-00002-of-00002.safetensors");
  CHECK(index.shards == std::vector<std::string>{"model-00001-of-00002.safetensors",
                                                 "model-00002-of-00002.safetensors"});
  CHECK(index.total_size == 41000000000U);
}

TEST_CASE("The total size of an index is optional", "[index]") {
  CHECK_FALSE(parse_shard_index(with_shard("a.safetensors")).total_size.has_value());
  CHECK(
      parse_shard_index(R"({"metadata":{"total_size":4.1e10},"weight_map":{"a":"x.safetensors"}})")
          .total_size == 41000000000U);
  CHECK_FALSE(
      parse_shard_index(R"({"metadata":{"total_size":"x"},"weight_map":{"a":"x.safetensors"}})")
          .total_size.has_value());
  CHECK_FALSE(parse_shard_index(R"({"metadata":null,"weight_map":{"a":"x.safetensors"}})")
                  .total_size.has_value());
}

TEST_CASE("A shard's name cannot leave the folder", "[index]") {
  CHECK(tag_of_index(with_shard("a-B_9.x.safetensors")) == "accepted");
  for (const char* name :
       {"", ".safetensors", "../a.safetensors", "a/b.safetensors", "/a.safetensors",
        "..\\\\a.safetensors", "a.safetensors/", "a.bin", "a.safetensors.bin", "a b.safetensors",
        "a\\u0000.safetensors", "a\\n.safetensors", "é.safetensors", "C:a.safetensors",
        "~a.safetensors", "a.SAFETENSORS", "$a.safetensors"}) {
    CAPTURE(name);
    CHECK(tag_of_index(with_shard(name)) == "INDEX_SHARD_NAME");
  }
  const ParseError error = error_of([] { parse_shard_index(with_shard("pytorch_model.bin")); });
  CHECK(error.hint.find("pickle") != std::string::npos);
}

TEST_CASE("An index of another form is refused", "[index]") {
  CHECK(tag_of_index("") == "INDEX_SYNTAX");
  CHECK(tag_of_index("{") == "INDEX_SYNTAX");
  CHECK(tag_of_index("[]") == "INDEX_FORM");
  CHECK(tag_of_index("1") == "INDEX_FORM");
  CHECK(tag_of_index("{}") == "INDEX_FORM");
  CHECK(tag_of_index(R"({"weight_map":{}})") == "INDEX_FORM");
  CHECK(tag_of_index(R"({"weight_map":[]})") == "INDEX_FORM");
  CHECK(tag_of_index(R"({"weight_map":null})") == "INDEX_FORM");
  CHECK(tag_of_index(R"({"weight_map":{"a":1}})") == "INDEX_FORM");
  CHECK(tag_of_index(R"({"weight_map":{"a":["x.safetensors"]}})") == "INDEX_FORM");
  CHECK(tag_of_index(R"({"weight_map":{"a":{"b":"x.safetensors"}}})") == "INDEX_FORM");
  CHECK(tag_of_index(R"({"metadata":{"weight_map":{"a":"x.safetensors"}}})") == "INDEX_FORM");
  CHECK(tag_of_index(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})") ==
        "INDEX_DUPLICATE");
  CHECK(tag_of_index(R"({"weight_map":{"a":"x.safetensors","\u0061":"x.safetensors"}})") ==
        "INDEX_DUPLICATE");
  CHECK(
      tag_of_index(R"({"weight_map":{"a":"x.safetensors"},"weight_map":{"b":"x.safetensors"}})") ==
      "INDEX_DUPLICATE");
  CHECK(tag_of_index("{\"x\":" + std::string(40, '[')) == "INDEX_DEPTH");
}

TEST_CASE("Every cut of an index is refused", "[index]") {
  const std::string text = R"({"metadata":{"total_size":1},"weight_map":{"a":"x.safetensors"}})";
  CHECK(tag_of_index(text) == "accepted");
  for (size_t i = 0; i < text.size(); ++i) CHECK(tag_of_index(text.substr(0, i)) != "accepted");
}

}  // namespace atelier::formats
