#include "host/report/error_line.h"

#include <nlohmann/json.hpp>

#include "support/catch.h"

namespace atelier::report {

TEST_CASE("JSON that is printed steers no terminal and says the same", "[report]") {
  const std::string steers =
      "a\x7f\xc2\x9b"
      "31m\xe2\x80\xae\xf3\xa0\x80\xa1\x1b[0m \xe4\xb8\xad \xc3\xa9";
  const nlohmann::json value = {{"a \"key\"\n", steers}, {"\xc2\x9b", 1}};
  for (const int indent : {-1, 2}) {
    const std::string text = printable_json(value.dump(indent));
    CHECK(nlohmann::json::parse(text) == value);
    CHECK(printable(text) == text);
    CHECK_THAT(text, Catch::Contains(
                         "\\u007f\\u009b31m\\u202e\\udb40\\udc21\\u001b[0m \xe4\xb8\xad \xc3\xa9"));
  }
}

}  // namespace atelier::report
