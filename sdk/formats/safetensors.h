// Headers of safetensors files: read, checked rule by rule, and written.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

// The element types of the format, in the order of its own list.
enum class DType {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
inline constexpr int kNumDTypes = 22;

// Bits of one element; F4 and the two F6 fill no whole byte.
int dtype_bits(DType dtype);

// The name in the file, "BF16" for instance.
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  // Bytes of the tensor, counted from `data_begin`.
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // from the start of the file
};

// Longest header, in bytes; the same as in the reference implementation.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr int kMaxRank = 64;

struct SafetensorsRules {
  // The format's text forbids whitespace before the brace, its reference implementation accepts it.
  bool allow_leading_whitespace = false;
};

// Returns the length of the JSON header. `first_bytes` are the first 8 bytes of the file, or all of
// a shorter one. Throws ParseError: ST_FILE_SHORT, ST_HEADER_TOO_LARGE, ST_HEADER_LENGTH.
uint64_t read_header_length(std::string_view first_bytes, uint64_t file_size);

// Checks a whole header. `header_bytes` is the JSON text alone, without the 8 bytes of length;
// `file_size` is the size of the file, which the tensors must fill exactly.
//
// Accepts what the reference implementation accepts, but for nine cases: ST_HEADER_START
// (whitespace first), ST_DUPLICATE_NAME, ST_DUPLICATE_METADATA, ST_METADATA_NULL,
// ST_ENTRY_POSITIONAL (an array for an entry), ST_DTYPE_FORM (an object for a dtype), ST_DIMENSION
// (2^63 or more), ST_RANK (above 64), ST_NAME (a name above 64 KiB). Throws ParseError; the other
// tags are ST_SYNTAX, ST_UTF8, ST_DEPTH, ST_ROOT, ST_METADATA, ST_ENTRY, ST_DTYPE, ST_SHAPE,
// ST_OFFSETS_FORM, ST_DUPLICATE_FIELD, ST_MISSING_FIELD, ST_OVERFLOW, ST_MISALIGNED, ST_SIZE,
// ST_OFFSET, ST_TRUNCATED and ST_TRAILING.
SafetensorsHeader parse_safetensors_header(std::string_view header_bytes, uint64_t file_size,
                                           const SafetensorsRules& rules = {});

// Names the wrong kind of a file that was taken for safetensors: git-lfs pointer, pickle, zip of
// pickles, GGUF, HTML page, by its first bytes (16 or more are best) and the extension of its name
// (".bin"). Returns the error to throw, with what to do, or nothing when it may be safetensors.
std::optional<ParseError> sniff(std::string_view first_bytes, std::string_view extension);

// Names a packing of weights that is known by its tensor names and not supported: bitsandbytes
// (int8), GPTQ, AWQ and SVDQuant. Returns the error to throw, or nothing.
std::optional<ParseError> find_unsupported_packing(const SafetensorsHeader& header);

// Bytes of a tensor. Throws ParseError: ST_DIMENSION, ST_RANK, ST_OVERFLOW, ST_MISALIGNED.
uint64_t tensor_bytes(std::string_view name, DType dtype, std::span<const int64_t> shape);

struct WrittenHeader {
  // Length, JSON and padding: everything before the tensors' bytes; a multiple of 4096.
  std::string bytes;
  // As given, in the order in which their bytes must follow, with begin and end set.
  std::vector<TensorEntry> tensors;
};

// Lays out a file that every safetensors reader accepts: widest dtypes first, so that each tensor
// is aligned to its element, then by name. begin and end of `tensors` are ignored. Throws
// ParseError with the tags of the parser when the file would break a rule.
WrittenHeader serialize_safetensors_header(std::vector<TensorEntry> tensors,
                                           const std::map<std::string, std::string>& metadata);

}  // namespace atelier::formats
