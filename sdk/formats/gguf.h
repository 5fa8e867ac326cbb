// GGUF files: what they say of their tensors. Values stand behind that, most of them as blocks of
// small codes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "formats/zip.h"

namespace atelier::formats {

// How the values of a tensor are stored; numbers as in the format.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kBF16 = 30,
};

// Blocks of `values` values are `bytes` bytes each.
struct GgufBlock {
  int64_t values = 1, bytes = 1;
};
GgufBlock block_of(GgufType type);
// "Q4_K".
std::string_view type_name(GgufType type);
// The dtype of a type whose blocks are single values; nullopt for codes.
std::optional<DType> plain_dtype(GgufType type);

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  // The longest step first, as elsewhere: the format's order turned around. Where the file says of
  // a tensor that it had another shape (`comfy.gguf.orig_shape.NAME`), that one.
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // from the start of the file
};

struct GgufIndex {
  std::vector<GgufTensor> tensors;              // as they follow each other in the file's list
  std::map<std::string, std::string> metadata;  // texts, and numbers as text; arrays are left out
  uint64_t header_end = 0;                      // from the start of the file
};

inline constexpr uint64_t kMaxGgufHeaderBytes = 256'000'000;

// Reads the header of a GGUF file of version 2 or 3, little endian, and checks it against the
// length of the file.
//
// Throws ParseError: GGUF_MAGIC, GGUF_VERSION, GGUF_CUT (the header leaves the file), GGUF_HEADER
// (longer than the limit), GGUF_KEY, GGUF_VALUE, GGUF_ALIGNMENT, GGUF_NAME, GGUF_DUPLICATE,
// GGUF_SHAPE, GGUF_TYPE (not known, or known and not read: IQ kinds), GGUF_OFFSET, GGUF_SIZE.
GgufIndex read_gguf(uint64_t file_size, const ReadBytes& read);

}  // namespace atelier::formats
