#include "formats/gguf.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

template <typename T>
std::string number(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
std::string text(const std::string& content) {
  return number<uint64_t>(content.size()) + content;
}
std::string tensor(const std::string& name, const std::vector<uint64_t>& lengths, uint32_t type,
                   uint64_t offset) {
  std::string bytes = text(name) + number(static_cast<uint32_t>(lengths.size()));
  for (const uint64_t length : lengths) bytes += number(length);
  return bytes + number(type) + number(offset);
}
std::string value(const std::string& key, uint32_t type, const std::string& bytes) {
  return text(key) + number(type) + bytes;
}

// A file of some tensors and metadata, with 64 bytes of values.
std::string file(const std::vector<std::string>& tensors,
                 const std::vector<std::string>& metadata = {}, uint64_t values = 64) {
  std::string bytes = "GGUF" + number<uint32_t>(3) + number<uint64_t>(tensors.size()) +
                      number<uint64_t>(metadata.size());
  for (const std::string& each : metadata) bytes += each;
  for (const std::string& each : tensors) bytes += each;
  bytes.resize((bytes.size() + 31) / 32 * 32);
  return bytes + std::string(values, '\1');
}

GgufIndex read(const std::string& bytes) {
  return read_gguf(bytes.size(), [&](uint64_t begin, uint64_t count) {
    REQUIRE(begin + count <= bytes.size());
    return bytes.substr(begin, count);
  });
}
std::string tag_of(const std::string& bytes) {
  return error_of([&] { read(bytes); }).tag;
}

}  // namespace

TEST_CASE("A GGUF file gives its tensors, with axes turned around", "[gguf]") {
  const std::string bytes =
      file({tensor("a.weight", {32, 2}, 2, 0), tensor("a.bias", {2}, 0, 64)},
           {value("general.architecture", 8, text("qwen_image")),
            value("general.file_type", 4, number<uint32_t>(15)), value("x.rate", 6, number(0.5f)),
            value("x.is", 7, number<uint8_t>(1)),
            value("tokens", 9, number<uint32_t>(8) + number<uint64_t>(2) + text("a") + text(""))},
           96);
  const GgufIndex index = read(bytes);
  REQUIRE(index.tensors.size() == 2);
  const GgufTensor &weight = index.tensors[0], &bias = index.tensors[1];
  CHECK(weight.name == "a.weight");
  CHECK(weight.type == GgufType::kQ4_0);
  CHECK(weight.shape == std::vector<int64_t>{2, 32});
  CHECK(weight.begin == bytes.size() - 96);
  CHECK(weight.end - weight.begin == 36);
  CHECK(bias.shape == std::vector<int64_t>{2});
  CHECK(bias.begin == bytes.size() - 32);
  CHECK(bias.end - bias.begin == 8);
  CHECK(index.metadata.at("general.architecture") == "qwen_image");
  CHECK(index.metadata.at("general.file_type") == "15");
  CHECK(index.metadata.at("x.rate") == "0.5");
  CHECK(index.metadata.at("x.is") == "true");
  CHECK_FALSE(index.metadata.contains("tokens"));
}

TEST_CASE("A tensor has the shape that the file says it had", "[gguf]") {
  const auto shape = [](std::vector<int32_t> lengths) {
    std::string bytes = number<uint32_t>(5) + number<uint64_t>(lengths.size());
    for (const int32_t length : lengths) bytes += number(length);
    return value("comfy.gguf.orig_shape.conv", 9, bytes);
  };
  const std::string conv = tensor("conv", {32, 1}, 2, 0);
  CHECK(read(file({conv}, {shape({2, 4, 2, 2, 1})})).tensors[0].shape ==
        std::vector<int64_t>{2, 4, 2, 2, 1});
  CHECK(tag_of(file({conv}, {shape({2, 4, 2})})) == "GGUF_SHAPE");
  CHECK(tag_of(file({conv}, {shape({-2, -16})})) == "GGUF_SHAPE");
}

TEST_CASE("Alignment is what the file says", "[gguf]") {
  const auto aligned = [](uint32_t to) {
    return file({tensor("a", {4}, 0, to)}, {value("general.alignment", 4, number(to))}, 256);
  };
  CHECK(read(aligned(64)).tensors[0].begin % 64 == 0);
  CHECK(tag_of(aligned(0)) == "GGUF_ALIGNMENT");
  CHECK(tag_of(aligned(48)) == "GGUF_ALIGNMENT");
}

TEST_CASE("What a GGUF file breaks is named", "[gguf]") {
  const std::string good = file({tensor("a", {4}, 0, 0)});
  REQUIRE(tag_of(good) == "accepted");
  CHECK(tag_of("GGU") == "GGUF_MAGIC");
  CHECK(tag_of("GGML" + good.substr(4)) == "GGUF_MAGIC");
  CHECK(tag_of("GGUF" + number<uint32_t>(1) + good.substr(8)) == "GGUF_VERSION");
  CHECK(std::string(error_of([&] {
                      read("GGUF" + number<uint32_t>(0x03000000) + good.substr(8));
                    }).what()) == "is a big-endian GGUF file");
  CHECK(tag_of(good.substr(0, 40)) == "GGUF_CUT");
  CHECK(tag_of(good.substr(0, good.size() - 60)) == "GGUF_OFFSET");
  CHECK(tag_of(file({tensor("a", {4}, 0, 0), tensor("a", {4}, 0, 32)})) == "GGUF_DUPLICATE");
  CHECK(tag_of(file({tensor("a", {8}, 0, 0), tensor("b", {9}, 0, 0)})) == "GGUF_OFFSET");
  CHECK(tag_of(file({tensor("a", {4}, 0, 4)})) == "GGUF_OFFSET");
  CHECK(tag_of(file({tensor("a", {4}, 0, uint64_t{1} << 63)})) == "GGUF_OFFSET");
  CHECK(tag_of(file({tensor("a", {uint64_t{1} << 62, 4}, 0, 0)})) == "GGUF_SIZE");
  CHECK(tag_of(file({tensor("a", {uint64_t{1} << 63}, 0, 0)})) == "GGUF_SHAPE");
  CHECK(tag_of(file({tensor("a", {33}, 2, 0)})) == "GGUF_SHAPE");
  CHECK(tag_of(file({tensor("a", {1, 1, 1, 1, 1}, 0, 0)})) == "GGUF_SHAPE");
  CHECK(tag_of(file({tensor("a", {4}, 99, 0)})) == "GGUF_TYPE");
  CHECK(tag_of(file({tensor("\xff", {4}, 0, 0)})) == "GGUF_NAME");
  const std::string key = value("k", 4, number<uint32_t>(7));
  CHECK(tag_of(file({}, {key, key})) == "GGUF_KEY");
  CHECK(tag_of(file({}, {value("k", 77, "")})) == "GGUF_VALUE");
  CHECK(tag_of(file({}, {value("k", 9, number<uint32_t>(9) + number<uint64_t>(1))})) ==
        "GGUF_VALUE");
  CHECK(tag_of(file({}, {value("k", 9, number<uint32_t>(12) + number(uint64_t{1} << 61))})) ==
        "GGUF_CUT");
  const ParseError kind = error_of([] { read(file({tensor("a", {256}, 23, 0)}, {}, 256)); });
  CHECK(kind.tag == "GGUF_TYPE");
  CHECK(std::string(kind.what()) == "tensor \"a\" is stored as IQ4_XS, which is not read");
}

}  // namespace atelier::formats
