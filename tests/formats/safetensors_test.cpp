#include "formats/safetensors.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

SafetensorsHeader parse(std::string_view header, uint64_t data_bytes,
                        const SafetensorsRules& rules = {}) {
  return parse_safetensors_header(header, 8 + header.size() + data_bytes, rules);
}

std::string tag_of_header(std::string_view header, uint64_t data_bytes = 0) {
  return error_of([&] { parse(header, data_bytes); }).tag;
}

// A header with one tensor, "t".
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

std::string u64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
  return bytes;
}

std::string nested_header(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

constexpr char kByte[] = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";

}  // namespace

TEST_CASE("The header's length is checked before anything is read", "[safetensors]") {
  const auto tag = [](const std::string& bytes, uint64_t size) {
    return error_of([&] { read_header_length(bytes, size); }).tag;
  };
  CHECK(tag("", 0) == "ST_FILE_SHORT");
  CHECK(tag("1234567", 7) == "ST_FILE_SHORT");
  CHECK(tag(u64(0), 8) == "accepted");
  CHECK(tag(u64(1), 8) == "ST_HEADER_LENGTH");
  CHECK(tag(u64(100), 108) == "accepted");
  CHECK(tag(u64(100), 107) == "ST_HEADER_LENGTH");
  CHECK(tag(u64(100'000'000), 100'000'008) == "accepted");
  CHECK(tag(u64(100'000'001), UINT64_MAX) == "ST_HEADER_TOO_LARGE");
  CHECK(tag(u64(UINT64_MAX), UINT64_MAX) == "ST_HEADER_TOO_LARGE");
  CHECK(tag(u64(UINT64_MAX - 7), 8) == "ST_HEADER_TOO_LARGE");
  CHECK(read_header_length(u64(0x0102) + "rest", 5000) == 0x0102);
}

TEST_CASE("A header gives its tensors in the order of their bytes", "[safetensors]") {
  const SafetensorsHeader header =
      parse(R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
            R"("__metadata__":{"format":"pt","k":"v\n"},)"
            R"("a":{"data_offsets":[0,4],"shape":[2],"dtype":"BF16"}}   )",
            28);
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.tensors[0].name == "a");
  CHECK(header.tensors[0].dtype == DType::kBF16);
  CHECK(header.tensors[0].shape == std::vector<int64_t>{2});
  CHECK(header.tensors[1].name == "b");
  CHECK(header.tensors[1].shape == std::vector<int64_t>{2, 3});
  CHECK(header.tensors[1].begin == 4);
  CHECK(header.tensors[1].end == 28);
  CHECK(header.metadata.at("format") == "pt");
  CHECK(header.metadata.at("k") == "v\n");
  CHECK(header.data_begin % 8 == (8 + header.data_begin) % 8);
}

TEST_CASE("All 22 dtypes are known with their bits", "[safetensors]") {
  int count = 0;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name(dtype_name(dtype));
    CHECK(dtype_from_name(name) == dtype);
    // Eight elements of any dtype fill whole bytes.
    const uint64_t bytes = static_cast<uint64_t>(dtype_bits(dtype));
    CHECK(tag_of_header(one(name, "[8]", "[0," + std::to_string(bytes) + "]"), bytes) ==
          "accepted");
    CHECK(tag_of_header(one(name, "[8]", "[0," + std::to_string(bytes + 1) + "]"), bytes + 1) ==
          "ST_SIZE");
    ++count;
  }
  CHECK(count == 22);
  CHECK(dtype_bits(DType::kF4) == 4);
  CHECK(dtype_bits(DType::kF6E3M2) == 6);
  CHECK(dtype_bits(DType::kBool) == 8);
  CHECK(dtype_bits(DType::kBF16) == 16);
  CHECK(dtype_bits(DType::kC64) == 64);
  CHECK_FALSE(dtype_from_name("F8").has_value());
  CHECK_FALSE(dtype_from_name("f32").has_value());
  CHECK_FALSE(dtype_from_name("").has_value());
}

TEST_CASE("Legal headers of unusual form are accepted", "[safetensors]") {
  const std::string rank64 = "[" + [] {
    std::string ones = "1";
    for (int i = 1; i < 64; ++i) ones += ",1";
    return ones;
  }() + "]";
  struct Case {
    const char* what;
    std::string header;
    uint64_t data_bytes;
  };
  const std::vector<Case> cases = {
      {"no tensors", "{}", 0},
      {"space before the end", "{}       ", 0},
      {"any whitespace after", "{}\n\t\r ", 0},
      {"scalar", one("F32", "[]", "[0,4]"), 4},
      {"empty tensor", one("F32", "[0,5]", "[0,0]"), 0},
      {"two empty tensors in one place",
       R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"F64","shape":[3,0],"data_offsets":[0,0]}})",
       0},
      {"rank 64", one("U8", rank64, "[0,1]"), 1},
      {"empty name", R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
      {"NUL in a name", R"({"a\u0000":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
      {"empty metadata", R"({"__metadata__":{}})", 0},
      {"unknown field",
       R"({"t":{)" + std::string(kByte) + R"(,"x":{"y":[1,{}],"y":null},"x":-1.5}})", 1},
      {"deep unknown field",
       R"({"t":{)" + std::string(kByte) + R"(,"x":)" + nested_header(125) + "}}", 1},
      {"empty dimension before a large one", one("U8", "[0,9223372036854775807,1]", "[0,0]"), 0},
      {"largest dimension", one("U8", "[9223372036854775807,0]", "[0,0]"), 0},
      {"four-bit pairs", one("F4", "[3,2]", "[0,3]"), 3},
      {"six-bit quads", one("F6_E2M3", "[4]", "[0,3]"), 3},
      {"escaped field", R"({"t":{"\u0064type":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
      {"unaligned data",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
       9},
  };
  for (const Case& one_case : cases) {
    CAPTURE(one_case.what);
    CHECK(tag_of_header(one_case.header, one_case.data_bytes) == "accepted");
  }
}

TEST_CASE("Each rule of the header has its own refusal", "[safetensors]") {
  const std::string rank65 = "[" + [] {
    std::string ones = "1";
    for (int i = 1; i < 65; ++i) ones += ",1";
    return ones;
  }() + "]";
  const std::string byte = kByte;
  struct Case {
    const char* tag;
    std::string header;
    uint64_t data_bytes;
  };
  const std::vector<Case> cases = {
      // The text as a whole.
      {"ST_SYNTAX", "", 0},
      {"ST_SYNTAX", "{", 0},
      {"ST_SYNTAX", "{}x", 0},
      {"ST_SYNTAX", "{}{}", 0},
      {"ST_SYNTAX", std::string("{}\0", 3), 0},
      {"ST_SYNTAX", "\xEF\xBB\xBF{}", 0},
      {"ST_SYNTAX", "{\"t\":{" + byte + ",}}", 1},
      {"ST_SYNTAX", "{\"t\":{" + byte + ",\"x\":NaN}}", 1},
      {"ST_SYNTAX", "{\"t\":{" + byte + "}/* */}", 1},
      {"ST_SYNTAX", "{\"t\":{" + byte + ",\"x\":\"\\ud800\"}}", 1},
      {"ST_SYNTAX", one("U8", "[01]", "[0,1]"), 1},
      {"ST_UTF8", "{\"\xff\":{" + byte + "}}", 1},
      {"ST_UTF8", "{\"\xed\xa0\x80\":{" + byte + "}}", 1},
      {"ST_UTF8", "{\"\xc0\xaf\":{" + byte + "}}", 1},
      {"ST_DEPTH", "{\"t\":{" + byte + ",\"x\":" + nested_header(126) + "}}", 1},
      {"ST_ROOT", "[]", 0},
      {"ST_ROOT", "null", 0},
      {"ST_ROOT", "\"{}\"", 0},
      {"ST_HEADER_START", " {}", 0},
      {"ST_HEADER_START", "\n{}", 0},
      // Metadata.
      {"ST_METADATA", R"({"__metadata__":[]})", 0},
      {"ST_METADATA", R"({"__metadata__":"x"})", 0},
      {"ST_METADATA", R"({"__metadata__":{"a":1}})", 0},
      {"ST_METADATA", R"({"__metadata__":{"a":null}})", 0},
      {"ST_METADATA", R"({"__metadata__":{"a":{}}})", 0},
      {"ST_METADATA_NULL", R"({"__metadata__":null})", 0},
      {"ST_DUPLICATE_METADATA", R"({"__metadata__":{"a":"1","\u0061":"2"}})", 0},
      {"ST_DUPLICATE_NAME", R"({"__metadata__":{},"__metadata__":{}})", 0},
      // Entries.
      {"ST_ENTRY", R"({"t":1})", 0},
      {"ST_ENTRY", R"({"t":null})", 0},
      {"ST_ENTRY", R"({"t":"U8"})", 0},
      {"ST_ENTRY_POSITIONAL", R"({"t":["U8",[1],[0,1]]})", 1},
      {"ST_MISSING_FIELD", R"({"t":{}})", 0},
      {"ST_MISSING_FIELD", R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1},
      {"ST_MISSING_FIELD", R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1},
      {"ST_MISSING_FIELD", R"({"t":{"dtype":"U8","shape":[1]}})", 1},
      {"ST_MISSING_FIELD", R"({"t":{"Dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
      {"ST_DUPLICATE_FIELD", "{\"t\":{" + byte + ",\"dtype\":\"U8\"}}", 1},
      {"ST_DUPLICATE_FIELD", "{\"t\":{" + byte + ",\"sh\\u0061pe\":[1]}}", 1},
      {"ST_DUPLICATE_FIELD", "{\"t\":{" + byte + ",\"data_offsets\":[0,1]}}", 1},
      {"ST_DUPLICATE_NAME", "{\"t\":{" + byte + "},\"t\":{" + byte + "}}", 1},
      {"ST_DUPLICATE_NAME", "{\"t\":{" + byte + "},\"\\u0074\":{" + byte + "}}", 1},
      {"ST_DTYPE", one("f32", "[1]", "[0,4]"), 4},
      {"ST_DTYPE", one("F128", "[1]", "[0,16]"), 16},
      {"ST_DTYPE", R"({"t":{"dtype":1,"shape":[1],"data_offsets":[0,1]}})", 1},
      {"ST_DTYPE", R"({"t":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1},
      {"ST_DTYPE_FORM", R"({"t":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}})", 1},
      {"ST_SHAPE", one("U8", "[1.0]", "[0,1]"), 1},
      {"ST_SHAPE", one("U8", "[1e0]", "[0,1]"), 1},
      {"ST_SHAPE", one("U8", "[-1]", "[0,1]"), 1},
      {"ST_SHAPE", one("U8", "[-0]", "[0,0]"), 0},
      {"ST_SHAPE", one("U8", "[18446744073709551616]", "[0,1]"), 1},
      {"ST_SHAPE", one("U8", "[\"1\"]", "[0,1]"), 1},
      {"ST_SHAPE", one("U8", "[[1]]", "[0,1]"), 1},
      {"ST_SHAPE", one("U8", "1", "[0,1]"), 1},
      {"ST_SHAPE", one("U8", "null", "[0,1]"), 1},
      {"ST_SHAPE", one("U8", "{}", "[0,1]"), 1},
      {"ST_DIMENSION", one("U8", "[9223372036854775808,0]", "[0,0]"), 0},
      {"ST_DIMENSION", one("U8", "[0,18446744073709551615]", "[0,0]"), 0},
      {"ST_RANK", one("U8", rank65, "[0,1]"), 1},
      // Offsets.
      {"ST_OFFSETS_FORM", one("U8", "[1]", "[0]"), 1},
      {"ST_OFFSETS_FORM", one("U8", "[1]", "[]"), 1},
      {"ST_OFFSETS_FORM", one("U8", "[1]", "[0,1,2]"), 1},
      {"ST_OFFSETS_FORM", one("U8", "[1]", "[0,-1]"), 1},
      {"ST_OFFSETS_FORM", one("U8", "[1]", "[0,1.0]"), 1},
      {"ST_OFFSETS_FORM", one("U8", "[1]", "[0,\"1\"]"), 1},
      {"ST_OFFSETS_FORM", one("U8", "[1]", "{\"0\":0}"), 1},
      {"ST_OFFSETS_FORM", one("U8", "[1]", "null"), 1},
      {"ST_OFFSETS_FORM", one("U8", "[1]", "[0,18446744073709551616]"), 1},
      // Sizes.
      {"ST_SIZE", one("U8", "[2]", "[0,1]"), 1},
      {"ST_SIZE", one("F32", "[]", "[0,3]"), 3},
      {"ST_SIZE", one("U8", "[0]", "[0,1]"), 1},
      {"ST_MISALIGNED", one("F4", "[1]", "[0,0]"), 0},
      {"ST_MISALIGNED", one("F4", "[3]", "[0,1]"), 1},
      {"ST_MISALIGNED", one("F6_E3M2", "[2]", "[0,1]"), 1},
      {"ST_OVERFLOW", one("U8", "[9223372036854775808,4,0]", "[0,0]"), 0},
      {"ST_OVERFLOW", one("U8", "[4294967296,4294967296]", "[0,0]"), 0},
      {"ST_OVERFLOW", one("U8", "[4294967296,4294967296,0]", "[0,0]"), 0},
      {"ST_OVERFLOW", one("U8", "[2305843009213693952]", "[0,2305843009213693952]"), 0},
      {"ST_OVERFLOW", one("F64", "[288230376151711744]", "[0,0]"), 0},
      // Tiling.
      {"ST_OFFSET", one("U8", "[1]", "[1,2]"), 2},
      {"ST_OFFSET", one("U8", "[1]", "[1,0]"), 1},
      {"ST_OFFSET", R"({"a":{)" + byte + R"(},"b":{)" + byte + "}}", 1},
      {"ST_OFFSET",
       R"({"a":{)" + byte + R"(},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", 3},
      {"ST_OFFSET",
       R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6},
      {"ST_TRUNCATED", one("U8", "[4]", "[0,4]"), 3},
      {"ST_TRUNCATED", one("U8", "[2305843009213693951]", "[0,2305843009213693951]"), 3},
      {"ST_TRAILING", one("U8", "[4]", "[0,4]"), 5},
      {"ST_TRAILING", "{}", 1},
  };
  for (const Case& one_case : cases) {
    CAPTURE(one_case.header, one_case.data_bytes);
    CHECK(tag_of_header(one_case.header, one_case.data_bytes) == one_case.tag);
  }
  const auto named = [&](size_t bytes) {
    return tag_of_header("{\"" + std::string(bytes, 'x') + "\":{" + byte + "}}", 1);
  };
  CHECK(named(65'536) == "accepted");
  CHECK(named(65'537) == "ST_NAME");
}

TEST_CASE("Tensors that fill exactly 2^64 - 1 bytes do not wrap the sum", "[safetensors]") {
  std::string header = "{";
  uint64_t at = 0;
  for (int i = 0; i < 9; ++i) {
    // 2^64 - 1 is 9 x 2049638230412172401 and 6.
    const uint64_t size = 2049638230412172401U + (i < 6 ? 1 : 0);
    header += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"U8","shape":[)" +
              std::to_string(size) + R"(],"data_offsets":[)" + std::to_string(at) + "," +
              std::to_string(at + size) + "]}";
    at += size;
  }
  header += "}";
  CHECK(at == UINT64_MAX);
  for (const uint64_t data_bytes : {0, 1, 7})
    CHECK(tag_of_header(header, data_bytes) == "ST_TRUNCATED");
}

TEST_CASE("A header that does not fit its file is refused", "[safetensors]") {
  CHECK(error_of([] { parse_safetensors_header("{}", 9); }).tag == "ST_HEADER_LENGTH");
  CHECK(error_of([] { parse_safetensors_header("{}", 0); }).tag == "ST_HEADER_LENGTH");
  CHECK(error_of([] { parse_safetensors_header("{}", 10); }).tag == "accepted");
}

TEST_CASE("Whitespace before the brace is allowed on request", "[safetensors]") {
  CHECK(parse("\n {}", 0, {.allow_leading_whitespace = true}).tensors.empty());
  CHECK(error_of([] { parse("x{}", 0, {.allow_leading_whitespace = true}); }).tag == "ST_SYNTAX");
}

TEST_CASE("A refusal names the tensor, escaped, and the byte of the file", "[safetensors]") {
  const ParseError error = error_of(
      [] { parse(R"({"a\u001b[31m\n":{"dtype":"F99","shape":[],"data_offsets":[0,1]}})", 1); });
  CHECK(error.tag == "ST_DTYPE");
  CHECK(std::string(error.what()).find(R"("a\x1b[31m\n")") != std::string::npos);
  CHECK(std::string(error.what()).find("\"F99\"") != std::string::npos);
  // "F99" ends before byte 31 of the header, which starts at byte 8.
  REQUIRE(error.byte.has_value());
  CHECK(*error.byte == 8 + 31);
  const ParseError long_name =
      error_of([] { parse("{\"" + std::string(70000, 'n') + "\":1}", 0); });
  CHECK(long_name.tag == "ST_NAME");
}

TEST_CASE("Every cut of a header is refused", "[safetensors]") {
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}})";
  CHECK(tag_of_header(header, 3) == "accepted");
  for (size_t i = 0; i < header.size(); ++i)
    CHECK(tag_of_header(header.substr(0, i), 3) != "accepted");
}

TEST_CASE("A written header parses back and is aligned", "[safetensors]") {
  std::vector<TensorEntry> tensors;
  uint64_t total = 0;
  for (int i = 0; i < kNumDTypes; ++i) {
    TensorEntry entry;
    entry.name = "t \"" + std::to_string(i) + "\" é\n";
    entry.dtype = static_cast<DType>(i);
    entry.shape = i % 3 == 0 ? std::vector<int64_t>{8} : std::vector<int64_t>{2, 4, i % 4 * 3};
    total += tensor_bytes(entry.name, entry.dtype, entry.shape);
    tensors.push_back(entry);
  }
  tensors.push_back({.name = "scalar", .dtype = DType::kF32, .shape = {}});
  total += 4;
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"k\n", "v\"\\"}};
  const WrittenHeader written = serialize_safetensors_header(tensors, metadata);
  CHECK(written.bytes.size() % 4096 == 0);
  const uint64_t size = written.bytes.size() + total;
  const uint64_t length = read_header_length(std::string_view(written.bytes).substr(0, 8), size);
  CHECK(length + 8 == written.bytes.size());
  const SafetensorsHeader header =
      parse_safetensors_header(std::string_view(written.bytes).substr(8), size);
  CHECK(header.data_begin == written.bytes.size());
  CHECK(header.metadata == metadata);
  REQUIRE(header.tensors.size() == tensors.size());
  REQUIRE(written.tensors.size() == tensors.size());
  int last_bits = 64;
  uint64_t position = 0;
  for (const TensorEntry& entry : written.tensors) {
    CHECK(entry.begin == position);
    CHECK(dtype_bits(entry.dtype) <= last_bits);
    last_bits = dtype_bits(entry.dtype);
    if (last_bits >= 8) CHECK(entry.begin % static_cast<uint64_t>(last_bits / 8) == 0);
    position = entry.end;
    const auto same = [&](const TensorEntry& other) {
      return other.name == entry.name && other.dtype == entry.dtype && other.shape == entry.shape &&
             other.begin == entry.begin && other.end == entry.end;
    };
    CHECK(std::count_if(header.tensors.begin(), header.tensors.end(), same) == 1);
  }
  CHECK(position == total);
  // The order in which tensors are given does not matter.
  std::reverse(tensors.begin(), tensors.end());
  CHECK(serialize_safetensors_header(tensors, metadata).bytes == written.bytes);
  CHECK(serialize_safetensors_header({}, {}).bytes.size() == 4096);
}

TEST_CASE("The writer refuses what the reader would", "[safetensors]") {
  const auto tag = [](std::vector<TensorEntry> tensors,
                      const std::map<std::string, std::string>& metadata = {}) {
    return error_of([&] { serialize_safetensors_header(std::move(tensors), metadata); }).tag;
  };
  const auto entry = [](const char* name, DType dtype, std::vector<int64_t> shape) {
    return TensorEntry{.name = name, .dtype = dtype, .shape = std::move(shape)};
  };
  CHECK(tag({entry("a", DType::kU8, {1}), entry("a", DType::kF32, {1})}) == "ST_DUPLICATE_NAME");
  CHECK(tag({entry("__metadata__", DType::kU8, {1})}) == "ST_METADATA");
  CHECK(tag({entry(std::string(65'537, 'x').c_str(), DType::kU8, {1})}) == "ST_NAME");
  CHECK(tag({entry("a", DType::kF4, {3})}) == "ST_MISALIGNED");
  CHECK(tag({entry("a", DType::kU8, {-1})}) == "ST_DIMENSION");
  CHECK(tag({entry("a", DType::kU8, std::vector<int64_t>(65, 1))}) == "ST_RANK");
  CHECK(tag({entry("a", DType::kU8, {int64_t{1} << 62, 4})}) == "ST_OVERFLOW");
  CHECK(tag({entry("\xff", DType::kU8, {1})}) == "ST_UTF8");
  CHECK(tag({}, {{"k", "\xc3"}}) == "ST_UTF8");
  CHECK(tag({}, {{"k", std::string(100'000'000, 'x')}}) == "ST_HEADER_TOO_LARGE");
  const std::vector<int64_t> huge = {(int64_t{1} << 60)};
  std::vector<TensorEntry> many;
  for (int i = 0; i < 16; ++i)
    many.push_back(entry(("t" + std::to_string(i)).c_str(), DType::kU8, huge));
  CHECK(tag(many) == "ST_OVERFLOW");
}

TEST_CASE("Files of another kind are named", "[safetensors]") {
  const auto kind = [](const std::string& bytes, std::string_view extension = ".safetensors") {
    const std::optional<ParseError> error = sniff(bytes, extension);
    if (!error) return std::string("none");
    CHECK_FALSE(error->hint.empty());
    return error->tag;
  };
  CHECK(kind("version https://git-lfs.github.com/spec/v1\noid sha256:") == "ST_GIT_LFS");
  CHECK(kind(std::string("PK\x03\x04\0\0\x08\x08", 8)) == "ST_ZIP");
  CHECK(kind(std::string("\x80\x02}q\x01(X\x04\0\0", 10)) == "ST_PICKLE");
  CHECK(kind("\x80\x05\x95" + std::string(20, 'x')) == "ST_PICKLE");
  CHECK(kind(std::string("GGUF\x03\0\0\0\0\0\0\0", 12)) == "ST_GGUF");
  CHECK(kind(std::string("\x89PNG\r\n\x1a\n\0\0\0\r", 12)) == "ST_IMAGE");
  CHECK(kind("<!DOCTYPE html><html>") == "ST_HTML");
  CHECK(kind("\n <HTML lang=en>") == "ST_HTML");
  CHECK(kind("<?xml version=\"1.0\"?>") == "ST_HTML");
  CHECK(kind("anything at all", ".BIN") == "ST_PICKLE");
  CHECK(kind("", ".ckpt") == "ST_PICKLE");
  CHECK(kind("", ".onnx") == "ST_KIND");
  REQUIRE(sniff("", ".gguf"));
  CHECK_THAT(sniff("", ".gguf")->what(),
             Catch::Contains("has the extension of a GGUF file, and does not begin as one"));
  // Length prefixes that look like the start of another kind.
  CHECK(kind(u64('<') + "{") == "none");
  CHECK(kind(u64('<') + "{", ".bin") == "none");
  CHECK(kind(u64(0x04034b50) + "{\"a\"") == "none");
  CHECK(kind(u64(0x0280) + "{}") == "none");
  CHECK(kind("<", ".safetensors") == "none");
  CHECK(kind("", "") == "none");
  CHECK(kind(std::string(8, '\0')) == "none");
}

TEST_CASE("Weights in a packing that is not supported are named", "[safetensors]") {
  const auto packing = [](const std::string& name) {
    SafetensorsHeader header;
    header.tensors.push_back({.name = "blocks.0.weight", .shape = {}});
    header.tensors.push_back({.name = name, .shape = {}});
    const std::optional<ParseError> error = find_unsupported_packing(header);
    return error ? std::string(error->what()) : std::string("none");
  };
  CHECK(packing("a.weight_format").find("bitsandbytes int8") != std::string::npos);
  CHECK(packing("a.qzeros").find("GPTQ") != std::string::npos);
  CHECK(packing("a.wscales").find("SVDQuant") != std::string::npos);
  CHECK(packing("a.weight") == "none");
  CHECK(packing("a.scale_weight") == "none");
}

TEST_CASE("Random bytes and damaged headers never do more than throw", "[safetensors]") {
  std::mt19937 random(5);
  const std::string good =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})";
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    const auto changes = 1 + random() % 3;
    for (unsigned j = 0; j < changes; ++j) {
      const size_t at = random() % bad.size();
      switch (random() % 3) {
        case 0:
          bad[at] = static_cast<char>(random());
          break;
        case 1:
          bad.erase(at, 1 + random() % 8);
          break;
        default:
          bad.insert(at, bad.substr(random() % bad.size(), random() % 16));
      }
      if (bad.empty()) bad = "{";
    }
    try {
      const SafetensorsHeader header = parse(bad, 6);
      ++accepted;
      uint64_t position = 0;
      for (const TensorEntry& entry : header.tensors) {
        REQUIRE(entry.begin == position);
        position = entry.end;
      }
      REQUIRE(position == 6);
    } catch (const ParseError&) {
    }
  }
  CHECK(accepted > 0);
}

}  // namespace atelier::formats
