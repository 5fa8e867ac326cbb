#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "formats/escape.h"
#include "formats/git_lfs.h"
#include "formats/json_reader.h"
#include "formats/pth.h"
#include "formats/utf8.h"

namespace atelier::formats {
namespace {

struct DTypeInfo {
  std::string_view name;
  int bits;
};
constexpr std::array<DTypeInfo, kNumDTypes> kDTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

// The reference implementation's own limit, found by trying.
constexpr int kHeaderDepth = 127;
constexpr uint64_t kHeaderAlignment = 4096;
constexpr char kMetadataKey[] = "__metadata__";

std::string tensor(std::string_view name) {
  return "tensor " + quote_and_escape(name);
}

std::string long_name(std::string_view name) {
  return tensor(name) + ": its name has " + std::to_string(name.size()) + " bytes, " +
         std::to_string(kMaxNameBytes) + " are the most";
}

// An entry whose dimensions are still as wide as in the file.
struct RawEntry {
  TensorEntry entry;
  std::vector<uint64_t> shape;
};

// Bytes of a tensor; dimensions are multiplied in order, and an overflow on the way counts even
// when a later dimension is 0.
uint64_t checked_bytes(std::string_view name, DType dtype, std::span<const uint64_t> shape) {
  uint64_t elements = 1;
  uint64_t bits = 0;
  bool overflows = false;
  for (const uint64_t dimension : shape) {
    overflows = overflows || __builtin_mul_overflow(elements, dimension, &elements);
  }
  overflows = overflows ||
              __builtin_mul_overflow(elements, static_cast<uint64_t>(dtype_bits(dtype)), &bits);
  if (overflows) {
    throw ParseError("ST_OVERFLOW", tensor(name) + ": its shape has more than 2^64 bits");
  }
  if (bits % 8 != 0) {
    throw ParseError("ST_MISALIGNED", tensor(name) + ": " + std::to_string(elements) +
                                          " elements of " + std::string(dtype_name(dtype)) +
                                          " do not fill whole bytes");
  }
  if (shape.size() > kMaxRank) {
    throw ParseError("ST_RANK", tensor(name) + ": has " + std::to_string(shape.size()) +
                                    " dimensions, " + std::to_string(kMaxRank) +
                                    " are the most that is supported");
  }
  for (const uint64_t dimension : shape) {
    if (dimension > static_cast<uint64_t>(INT64_MAX)) {
      throw ParseError("ST_DIMENSION", tensor(name) + ": dimension " + std::to_string(dimension) +
                                           " is above 2^63 - 1");
    }
  }
  return bits / 8;
}

// Reads the header in one pass. Fields that the format does not know are skipped, whatever they
// hold.
class HeaderHandler : public JsonHandler {
 public:
  std::vector<RawEntry> entries;
  std::map<std::string, std::string> metadata;

  void on_null() override {
    if (skip_ == 0 && where_ == Where::kRoot && key_ == kMetadataKey) {
      fail("ST_METADATA_NULL", "__metadata__ is null", "leave it out, or make it an object");
    }
    other("null");
  }
  void on_boolean(bool) override { other("a boolean"); }
  void on_negative(int64_t) override { other("a number with a sign"); }
  void on_real(double, const std::string&) override { other("a number that is no 64-bit integer"); }

  void on_unsigned(uint64_t value) override {
    if (skip_ > 0) return;
    if (where_ == Where::kShape) {
      current_.shape.push_back(value);
    } else if (where_ == Where::kOffsets) {
      if (num_offsets_ == 2) wrong_offsets("a third value");
      (num_offsets_ == 0 ? current_.entry.begin : current_.entry.end) = value;
      ++num_offsets_;
    } else {
      other("a number");
    }
  }

  void on_string(std::string& value) override {
    if (skip_ > 0) return;
    if (where_ == Where::kMetadata) {
      metadata.emplace(std::move(key_), std::move(value));
    } else if (where_ == Where::kEntry && field_ == Field::kDType) {
      const std::optional<DType> dtype = dtype_from_name(value);
      if (!dtype) {
        fail("ST_DTYPE",
             tensor(current_.entry.name) + ": dtype " + quote_and_escape(value) + " is not known");
      }
      current_.entry.dtype = *dtype;
    } else {
      other("a string");
    }
  }

  void on_start_object() override {
    if (skip_ > 0) {
      ++skip_;
    } else if (where_ == Where::kOutside) {
      where_ = Where::kRoot;
    } else if (where_ == Where::kRoot) {
      if (key_ == kMetadataKey) {
        where_ = Where::kMetadata;
        return;
      }
      where_ = Where::kEntry;
      current_ = {};
      current_.entry.name = std::move(key_);
      seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    } else {
      if (where_ == Where::kEntry && field_ == Field::kDType) {
        fail("ST_DTYPE_FORM", tensor(current_.entry.name) + ": dtype is an object, not a string");
      }
      other("an object");
      ++skip_;
    }
  }

  void on_key(std::string& key) override {
    if (skip_ > 0) return;
    if (where_ == Where::kRoot) {
      if (key.size() > kMaxNameBytes) fail("ST_NAME", long_name(key));
      if (!names_.insert(key)) {
        fail("ST_DUPLICATE_NAME", tensor(key) + ": is listed twice",
             "the file is ambiguous, get it from its source again");
      }
      key_ = std::move(key);
    } else if (where_ == Where::kMetadata) {
      if (metadata.contains(key)) {
        fail("ST_DUPLICATE_METADATA",
             "__metadata__: key " + quote_and_escape(key) + " is given twice");
      }
      key_ = std::move(key);
    } else {
      field_ = key == "dtype"          ? Field::kDType
               : key == "shape"        ? Field::kShape
               : key == "data_offsets" ? Field::kOffsets
                                       : Field::kOther;
      bool* seen = field_ == Field::kDType     ? &seen_dtype_
                   : field_ == Field::kShape   ? &seen_shape_
                   : field_ == Field::kOffsets ? &seen_offsets_
                                               : nullptr;
      if (seen != nullptr && std::exchange(*seen, true)) {
        fail("ST_DUPLICATE_FIELD",
             tensor(current_.entry.name) + ": field " + quote_and_escape(key) + " is given twice");
      }
    }
  }

  void on_end_object() override {
    if (skip_ > 0) {
      --skip_;
    } else if (where_ == Where::kMetadata) {
      where_ = Where::kRoot;
    } else if (where_ == Where::kEntry) {
      const char* missing = !seen_dtype_     ? "dtype"
                            : !seen_shape_   ? "shape"
                            : !seen_offsets_ ? "data_offsets"
                                             : nullptr;
      if (missing != nullptr) {
        fail("ST_MISSING_FIELD", tensor(current_.entry.name) + ": has no " + missing);
      }
      entries.push_back(std::move(current_));
      where_ = Where::kRoot;
    } else {
      where_ = Where::kOutside;
    }
  }

  void on_start_array() override {
    if (skip_ == 0 && where_ == Where::kEntry && field_ == Field::kShape) {
      where_ = Where::kShape;
    } else if (skip_ == 0 && where_ == Where::kEntry && field_ == Field::kOffsets) {
      where_ = Where::kOffsets;
      num_offsets_ = 0;
    } else if (skip_ == 0 && where_ == Where::kRoot && key_ != kMetadataKey) {
      fail("ST_ENTRY_POSITIONAL", tensor(key_) + ": is an array, not an object");
    } else {
      if (skip_ == 0) other("an array");
      ++skip_;
    }
  }

  void on_end_array() override {
    if (skip_ > 0) {
      --skip_;
      return;
    }
    if (where_ == Where::kOffsets && num_offsets_ != 2) {
      wrong_offsets(std::to_string(num_offsets_) + " values");
    }
    where_ = Where::kEntry;
  }

 private:
  enum class Where { kOutside, kRoot, kMetadata, kEntry, kShape, kOffsets };
  enum class Field { kDType, kShape, kOffsets, kOther };

  [[noreturn]] void wrong_offsets(const std::string& found) const {
    fail("ST_OFFSETS_FORM", tensor(current_.entry.name) + ": data_offsets holds " + found +
                                ", it must be two integers from 0 to 2^64 - 1");
  }

  // A value where the format wants another kind: refused, unless its field is not known.
  void other(const char* found) const {
    if (skip_ > 0) return;
    const std::string name = where_ == Where::kRoot ? key_ : current_.entry.name;
    switch (where_) {
      case Where::kOutside:
        fail("ST_ROOT", std::string("the header is ") + found + ", not an object");
      case Where::kRoot:
        if (key_ == kMetadataKey) {
          fail("ST_METADATA", std::string("__metadata__ is ") + found + ", not an object");
        }
        fail("ST_ENTRY", tensor(name) + ": is " + found + ", not an object");
      case Where::kMetadata:
        fail("ST_METADATA",
             "__metadata__: " + quote_and_escape(key_) + " is " + found + ", not a string");
      case Where::kShape:
        fail("ST_SHAPE", tensor(name) + ": shape holds " + found +
                             ", it must hold integers from 0 to 2^63 - 1");
      case Where::kOffsets:
        wrong_offsets(found);
      case Where::kEntry:
        break;
    }
    switch (field_) {
      case Field::kDType:
        fail("ST_DTYPE", tensor(name) + ": dtype is " + found + ", not a string");
      case Field::kShape:
        fail("ST_SHAPE", tensor(name) + ": shape is " + found + ", not an array");
      case Field::kOffsets:
        wrong_offsets(found);
      case Field::kOther:
        break;
    }
  }

  Where where_ = Where::kOutside;
  Field field_ = Field::kOther;
  // Arrays and objects open inside a value that is skipped.
  int skip_ = 0;
  std::string key_;
  SeenKeys names_;
  RawEntry current_;
  int num_offsets_ = 0;
  bool seen_dtype_ = false;
  bool seen_shape_ = false;
  bool seen_offsets_ = false;
};

// Tensors must follow each other without hole or overlap, from byte 0 to the end of the file.
void check_tiling(const std::vector<RawEntry>& entries, uint64_t data_bytes) {
  uint64_t position = 0;
  for (const RawEntry& raw : entries) {
    const TensorEntry& entry = raw.entry;
    const std::string offsets =
        "[" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
    if (entry.begin != position || entry.end < entry.begin) {
      const char* what = entry.end < entry.begin  ? " end before they begin"
                         : entry.begin > position ? " leave a hole after byte "
                                                  : " overlap the tensor that ends at byte ";
      throw ParseError("ST_OFFSET",
                       tensor(entry.name) + ": data_offsets " + offsets + what +
                           (entry.end < entry.begin ? "" : std::to_string(position)) +
                           ", tensors must follow each other",
                       "the file is damaged, get it from its source again");
    }
    const uint64_t bytes = checked_bytes(entry.name, entry.dtype, raw.shape);
    if (entry.end - entry.begin != bytes) {
      throw ParseError("ST_SIZE", tensor(entry.name) + ": data_offsets " + offsets + " hold " +
                                      std::to_string(entry.end - entry.begin) +
                                      " bytes, its dtype and shape need " + std::to_string(bytes));
    }
    position = entry.end;
  }
  if (position > data_bytes) {
    const std::string last = entries.empty() ? "" : entries.back().entry.name;
    throw ParseError("ST_TRUNCATED",
                     tensor(last) + ": ends at byte " + std::to_string(position) +
                         " of the data, the file holds " + std::to_string(data_bytes),
                     "the file is cut short, download it again");
  }
  if (position < data_bytes) {
    throw ParseError(
        "ST_TRAILING",
        std::to_string(data_bytes - position) + " bytes after the last tensor belong to none",
        "the file is damaged, get it from its source again");
  }
}

uint64_t read_u64(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 8; i-- > 0;) value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string json_string(const std::string& text, const char* what) {
  if (find_invalid_utf8(text) != std::string::npos) {
    throw ParseError("ST_UTF8", std::string(what) + " " + quote_and_escape(text) + " is not UTF-8");
  }
  return nlohmann::json(text).dump();
}

}  // namespace

int dtype_bits(DType dtype) {
  return kDTypes.at(static_cast<size_t>(dtype)).bits;
}

std::string_view dtype_name(DType dtype) {
  return kDTypes.at(static_cast<size_t>(dtype)).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

uint64_t read_header_length(std::string_view first_bytes, uint64_t file_size) {
  if (first_bytes.size() < 8 || file_size < 8) {
    throw ParseError(
        "ST_FILE_SHORT",
        "is " + std::to_string(file_size) + " bytes long, a safetensors file has at least 8",
        "the file is cut short, download it again", 0);
  }
  const uint64_t length = read_u64(first_bytes);
  if (length > kMaxHeaderBytes) {
    throw ParseError("ST_HEADER_TOO_LARGE",
                     "its header claims " + std::to_string(length) + " bytes, " +
                         std::to_string(kMaxHeaderBytes) + " are the most",
                     "this is not a safetensors file, or its start is damaged", 0);
  }
  if (length > file_size - 8) {
    throw ParseError("ST_HEADER_LENGTH",
                     "its header claims " + std::to_string(length) + " bytes, " +
                         std::to_string(file_size - 8) + " follow",
                     "the file is cut short, download it again", 0);
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view header_bytes, uint64_t file_size,
                                           const SafetensorsRules& rules) {
  if (header_bytes.size() > kMaxHeaderBytes || file_size < 8 ||
      header_bytes.size() > file_size - 8) {
    throw ParseError("ST_HEADER_LENGTH", "a header of " + std::to_string(header_bytes.size()) +
                                             " bytes does not fit a file of " +
                                             std::to_string(file_size));
  }
  // serde, behind the reference, looks at the whole header's UTF-8 first.
  if (const size_t bad = find_invalid_utf8(header_bytes); bad != std::string_view::npos) {
    throw ParseError("ST_UTF8", "the header is not UTF-8", "the file is damaged", 8 + bad);
  }
  HeaderHandler handler;
  try {
    read_json(header_bytes, {.max_depth = kHeaderDepth, .tag_prefix = "ST_"}, handler);
  } catch (ParseError& error) {
    if (error.byte) *error.byte += 8;
    error.line.reset();
    throw;
  }
  std::vector<RawEntry>& entries = handler.entries;
  std::sort(entries.begin(), entries.end(), [](const RawEntry& left, const RawEntry& right) {
    return std::tie(left.entry.begin, left.entry.end, left.entry.name) <
           std::tie(right.entry.begin, right.entry.end, right.entry.name);
  });
  check_tiling(entries, file_size - 8 - header_bytes.size());
  if (header_bytes.front() != '{' && !rules.allow_leading_whitespace) {
    throw ParseError("ST_HEADER_START", "the header starts with whitespace, not with a brace",
                     "save the file again with a current safetensors", 8);
  }

  SafetensorsHeader header;
  header.data_begin = 8 + header_bytes.size();
  header.metadata = std::move(handler.metadata);
  header.tensors.reserve(entries.size());
  for (RawEntry& raw : entries) {
    raw.entry.shape.assign(raw.shape.begin(), raw.shape.end());
    header.tensors.push_back(std::move(raw.entry));
  }
  return header;
}

std::optional<ParseError> sniff(std::string_view first_bytes, std::string_view extension) {
  const std::string_view bytes = first_bytes;
  if (bytes.size() >= 9 && read_u64(bytes) <= kMaxHeaderBytes &&
      contains("{ \t\r\n", bytes.substr(8, 1))) {
    return std::nullopt;
  }
  const char* kConvert =
      "use the model's safetensors, or save it again with torch.save() of PyTorch 1.6 or newer: "
      "only "
      "its archives are read, in which nothing can run";
  if (auto pointer = find_git_lfs_pointer(bytes, "ST_")) return pointer;
  if (bytes.starts_with("PK\x03\x04")) {
    return ParseError("ST_ZIP", "is a zip archive, most likely a PyTorch pickle", kConvert, 0);
  }
  if (bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5) {
    return ParseError("ST_PICKLE", "is a Python pickle", kConvert, 0);
  }
  if (bytes.starts_with("GGUF")) {
    return ParseError("ST_GGUF", "is a GGUF file, not a safetensors file",
                      "give a safetensors file here", 0);
  }
  for (const auto& [magic, name] :
       {std::pair{"\x89PNG", "PNG"}, {"\xff\xd8\xff", "JPEG"}, {"GIF8", "GIF"}}) {
    if (bytes.starts_with(magic))
      return ParseError("ST_IMAGE", std::string("is a ") + name + " image, and holds no tensors",
                        "give a safetensors file", 0);
  }
  const std::string lower = to_lower(bytes.substr(0, 64));
  const size_t text = lower.find_first_not_of(" \t\r\n");
  const std::string_view page =
      text == std::string::npos ? "" : std::string_view(lower).substr(text);
  if (page.starts_with("<!doctype") || page.starts_with("<html") || page.starts_with("<?xml")) {
    return ParseError("ST_HTML", "is a web page, not a model file",
                      "the download was answered with a page (login, licence or error); "
                      "download the file itself",
                      0);
  }
  const std::string suffix = to_lower(extension);
  for (const char* pickle : {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}) {
    if (suffix == pickle) {
      return ParseError("ST_PICKLE", "has the extension of a PyTorch pickle, " + suffix, kConvert);
    }
  }
  if (suffix == ".gguf")
    return ParseError("ST_KIND", "has the extension of a GGUF file, and does not begin as one",
                      "download the file again");
  for (const char* known : {".onnx", ".h5", ".msgpack", ".npz", ".tflite"}) {
    if (suffix == known) {
      return ParseError("ST_KIND", "is a " + suffix.substr(1) + " file, which is not supported",
                        "use the safetensors files of the model");
    }
  }
  return std::nullopt;
}

std::optional<ParseError> find_unsupported_packing(const SafetensorsHeader& header) {
  struct Mark {
    std::string_view part;
    const char* packing;
  };
  static constexpr std::array<Mark, 4> kMarks = {{
      {".weight_format", "bitsandbytes int8"},
      {".qzeros", "GPTQ or AWQ"},
      {".wscales", "SVDQuant"},
      {".g_idx", "GPTQ"},
  }};
  for (const TensorEntry& entry : header.tensors) {
    for (const Mark& mark : kMarks) {
      if (contains(entry.name, mark.part)) {
        return ParseError("ST_PACKING",
                          tensor(entry.name) + ": weights are packed with " + mark.packing +
                              ", which is not supported",
                          "use the bf16, fp16 or fp8 files of the model");
      }
    }
  }
  return std::nullopt;
}

uint64_t tensor_bytes(std::string_view name, DType dtype, std::span<const int64_t> shape) {
  std::vector<uint64_t> dimensions;
  for (const int64_t dimension : shape) {
    if (dimension < 0) {
      throw ParseError("ST_DIMENSION",
                       tensor(name) + ": dimension " + std::to_string(dimension) + " is negative");
    }
    dimensions.push_back(static_cast<uint64_t>(dimension));
  }
  return checked_bytes(name, dtype, dimensions);
}

WrittenHeader serialize_safetensors_header(std::vector<TensorEntry> tensors,
                                           const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& left, const TensorEntry& right) {
    const int left_bits = dtype_bits(left.dtype);
    const int right_bits = dtype_bits(right.dtype);
    return left_bits != right_bits ? left_bits > right_bits : left.name < right.name;
  });
  SeenKeys names;
  uint64_t position = 0;
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (text.back() != '{') text += ',';
      text +=
          json_string(key, "__metadata__: key") + ':' + json_string(value, "__metadata__: value");
    }
    text += '}';
  }
  for (TensorEntry& entry : tensors) {
    if (entry.name == kMetadataKey) {
      throw ParseError("ST_METADATA", tensor(entry.name) + ": the name is kept for metadata");
    }
    if (entry.name.size() > kMaxNameBytes) throw ParseError("ST_NAME", long_name(entry.name));
    if (!names.insert(entry.name)) {
      throw ParseError("ST_DUPLICATE_NAME", tensor(entry.name) + ": is listed twice");
    }
    entry.begin = position;
    if (__builtin_add_overflow(position, tensor_bytes(entry.name, entry.dtype, entry.shape),
                               &position)) {
      throw ParseError("ST_OVERFLOW", tensor(entry.name) + ": the file passes 2^64 bytes");
    }
    entry.end = position;
    if (text.size() > 1) text += ',';
    text += json_string(entry.name, "tensor") + ":{\"dtype\":\"";
    text += dtype_name(entry.dtype);
    text += "\",\"shape\":[";
    for (size_t i = 0; i < entry.shape.size(); ++i) {
      if (i > 0) text += ',';
      text += std::to_string(entry.shape[i]);
    }
    text += "],\"data_offsets\":[" + std::to_string(entry.begin) + ',' + std::to_string(entry.end) +
            "]}";
  }
  text += '}';
  const uint64_t padded =
      (8 + text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment;
  if (padded - 8 > kMaxHeaderBytes) {
    throw ParseError("ST_HEADER_TOO_LARGE", "the header would be " + std::to_string(padded - 8) +
                                                " bytes long, " + std::to_string(kMaxHeaderBytes) +
                                                " are the most");
  }
  text.resize(padded - 8, ' ');
  WrittenHeader written;
  for (int i = 0; i < 8; ++i) {
    written.bytes.push_back(static_cast<char>((text.size() >> (8 * i)) & 0xFF));
  }
  written.bytes += text;
  written.tensors = std::move(tensors);
  return written;
}

}  // namespace atelier::formats
