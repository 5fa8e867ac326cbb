#include "formats/base64.h"

#include <catch2/catch.hpp>

namespace atelier::formats {
namespace {

TEST_CASE("Base64 is that of RFC 4648", "[formats]") {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"},
                                                         {"\xff\xfe\xfd", "//79"}};
  for (const auto& [bytes, text] : vectors) {
    CHECK(encode_base64(bytes) == text);
    CHECK(decode_base64(text) == bytes);
  }
  CHECK(decode_base64("Zm9vYg") == "foob");
  CHECK(decode_base64("Zm8") == "fo");
}

TEST_CASE("What is no base64 is refused", "[formats]") {
  for (const char* text :
       {"A", "Zg=", "Zg===", "=", "====", "Zm9v\n", "Zm 9", "Zm9-", "Z=g=", "Zm9v="})
    CHECK_FALSE(decode_base64(text));
}

TEST_CASE("Every byte comes back from base64", "[formats]") {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  CHECK(decode_base64(encode_base64(bytes)) == bytes);
}

}  // namespace
}  // namespace atelier::formats
