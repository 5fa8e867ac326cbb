#include "formats/multipart.h"

#include <catch2/catch.hpp>
#include <string>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

constexpr std::string_view kType = "multipart/form-data; boundary=XY";

std::string part(std::string_view disposition, std::string_view bytes, std::string_view more = "") {
  return "--XY\r\nContent-Disposition: " + std::string(disposition) + "\r\n" + std::string(more) +
         "\r\n" + std::string(bytes) + "\r\n";
}

std::string tag_of_form(std::string_view body, std::string_view type = kType,
                        const MultipartLimits& limits = {}) {
  return error_of([&] { parse_multipart(type, body, limits); }).tag;
}

}  // namespace

TEST_CASE("A form has its parts in their order", "[http]") {
  const std::string picture("\r\n--X\0\r\n--\r\n", 11);
  const std::string body = part("form-data; name=\"prompt\"", "a 权\r\nb") +
                           part("form-data; name=\"image[]\"; filename=\"a \\\"b\\\".png\"",
                                picture, "content-type:  image/png\r\nX-Other: 1\r\n") +
                           part("Form-Data; name=image[]; filename=\"\"", "") + "--XY--\r\n";
  CHECK(tag_of_form(body) == "HTTP_FIELD");  // brackets want quotes
  const std::string good =
      part("form-data; name=\"prompt\"", "a 权\r\nb") +
      part("form-data; name=\"image[]\"; filename=\"a \\\"b\\\".png\"", picture,
           "content-type:  image/png\r\nX-Other: 1\r\n") +
      part("Form-Data; name=n; filename=\"\"", "") +
      part("form-data; name=n; filename=\"_.png\"; filename*=UTF-8''%e6%9d%83.png", "--XY",
           "Content-Transfer-Encoding: binary\r\n") +
      "--XY--";
  const auto parts = parse_multipart("Multipart/Form-Data; boundary=\"XY\"", good);
  REQUIRE(parts.size() == 4);
  CHECK(parts[0].name == "prompt");
  CHECK_FALSE(parts[0].file_name);
  CHECK(parts[0].content_type.empty());
  CHECK(parts[0].bytes == "a 权\r\nb");
  CHECK(parts[1].name == "image[]");
  CHECK(parts[1].file_name == "a \"b\".png");
  CHECK(parts[1].content_type == "image/png");
  CHECK(parts[1].bytes == picture);
  CHECK(parts[2].file_name == "");
  CHECK(parts[2].bytes.empty());
  CHECK(parts[3].name == "n");
  CHECK(parts[3].file_name == "权.png");
  CHECK(parts[3].bytes == "--XY");
  CHECK(parse_multipart(kType, "--XY--\r\n").empty());
}

TEST_CASE("A form that is not whole or reads in two ways is refused", "[http]") {
  const std::string good = part("form-data; name=a", "1") + "--XY--\r\n";
  for (size_t length = 0; length < good.size() - 2; ++length) {
    INFO(length);
    CHECK(tag_of_form(good.substr(0, length)) == "MULTIPART_FORM");
  }
  CHECK(tag_of_form("x" + good) == "MULTIPART_FORM");
  CHECK(tag_of_form(good + "x") == "MULTIPART_FORM");
  CHECK(tag_of_form("--XYZ\r\n" + good) == "MULTIPART_FORM");
  CHECK(tag_of_form(part("form-data; name=a", "1\r\n--XYZ") + "--XY--") == "MULTIPART_FORM");
  CHECK(tag_of_form(part("form-data; name=\"\"", "1") + "--XY--") == "MULTIPART_FORM");
  CHECK(tag_of_form(part("form-data; filename=a", "1") + "--XY--") == "MULTIPART_FORM");
  CHECK(tag_of_form(part("attachment; name=a", "1") + "--XY--") == "MULTIPART_FORM");
  CHECK(tag_of_form(part("form-data; name=a; name=b", "1") + "--XY--") == "HTTP_FIELD");
  CHECK(tag_of_form(part("form-data; name=a; filename*=latin1''a", "") + "--XY--") ==
        "MULTIPART_FORM");
  CHECK(tag_of_form(part("form-data; name=a; filename*=utf-8''%00", "") + "--XY--") == "URL_TEXT");
  const auto with = [](std::string_view line) {
    return part("form-data; name=a", "1", line) + "--XY--";
  };
  CHECK(tag_of_form(with("Content-Disposition: form-data; name=b\r\n")) == "MULTIPART_FORM");
  CHECK(tag_of_form(with("Content-Transfer-Encoding: base64\r\n")) == "MULTIPART_FORM");
  CHECK(tag_of_form(with("no colon\r\n")) == "MULTIPART_FORM");
  CHECK(tag_of_form(with("Bad Name: 1\r\n")) == "MULTIPART_FORM");
  CHECK(tag_of_form(with("Content-Type: ;\r\n")) == "HTTP_FIELD");
  CHECK(tag_of_form("--XY\r\n\r\n1\r\n--XY--") == "MULTIPART_FORM");
}

TEST_CASE("A form needs a boundary, and passes no limit", "[http]") {
  const std::string good =
      part("form-data; name=a", "1") + part("form-data; name=a", "2") + "--XY--";
  CHECK(tag_of_form(good, "multipart/form-data") == "MULTIPART_TYPE");
  CHECK(tag_of_form(good, "multipart/mixed; boundary=XY") == "MULTIPART_TYPE");
  CHECK(tag_of_form(good, "multipart/form-data; boundary=\"\"") == "MULTIPART_TYPE");
  CHECK(tag_of_form(good, "multipart/form-data; boundary=\"a \"") == "MULTIPART_TYPE");
  CHECK(tag_of_form(good, "multipart/form-data; boundary=" + std::string(71, 'a')) ==
        "MULTIPART_TYPE");
  CHECK(tag_of_form(good, "") == "HTTP_FIELD");
  CHECK(tag_of_form(good, kType, {.max_parts = 1}) == "MULTIPART_TOO_LARGE");
  CHECK(parse_multipart(kType, good, {.max_parts = 2}).size() == 2);
  // The line of the name has 40 bytes with its end, and the empty line two.
  CHECK(tag_of_form(good, kType, {.max_header_bytes = 41}) == "MULTIPART_TOO_LARGE");
  CHECK(parse_multipart(kType, good, {.max_header_bytes = 42}).size() == 2);
}

}  // namespace atelier::formats
