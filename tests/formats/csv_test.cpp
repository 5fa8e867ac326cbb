#include "formats/csv.h"

#include <catch2/catch.hpp>
#include <string>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

using Fields = std::vector<std::string>;

std::string tag_of_csv(std::string_view text) {
  return error_of([&] { parse_csv(text); }).tag;
}

}  // namespace

TEST_CASE("A table is read row by row", "[csv]") {
  const auto rows =
      parse_csv("\xEF\xBB\xBFimage,prompt\r\na.png,\"x, \"\"y\"\"\nz\"\n\nb.png,\n\"\"\n权,é");
  REQUIRE(rows.size() == 5);
  CHECK(rows[0].fields == Fields{"image", "prompt"});
  CHECK(rows[1].fields == Fields{"a.png", "x, \"y\"\nz"});
  CHECK(rows[1].line == 2);
  CHECK(rows[2].fields == Fields{"b.png", ""});
  CHECK(rows[2].line == 5);
  CHECK(rows[3].fields == Fields{""});
  CHECK(rows[4].fields == Fields{"权", "é"});
  CHECK(rows[4].line == 7);
  CHECK(parse_csv("").empty());
  CHECK(parse_csv("\n\r\n\n").empty());
  CHECK(parse_csv(",").front().fields == Fields{"", ""});
  CHECK(parse_csv("a\"b").front().fields == Fields{"a\"b"});
}

TEST_CASE("A table that is not well formed is refused with its line", "[csv]") {
  CHECK(tag_of_csv("a,\"b") == "CSV_QUOTE");
  CHECK(tag_of_csv("\"a\"b") == "CSV_QUOTE");
  CHECK(tag_of_csv("a\nb\xff") == "CSV_UTF8");
  CHECK(error_of([] { parse_csv("a\nb\xff"); }).line == 2);
  CHECK(error_of([] { parse_csv("a\n\"b\nc\nd"); }).line == 2);
  CHECK(error_of([] { parse_csv("\"a\nb\",c\n\"d\"e"); }).line == 3);
}

}  // namespace atelier::formats
