#include "formats/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "formats/escape.h"
#include "formats/pth.h"
#include "formats/utf8.h"

namespace atelier::formats {
namespace {

constexpr const char* kDownloadAgain = "the file is damaged, download it again";
constexpr uint64_t kWindowBytes = 65'536;
constexpr uint64_t kMaxKeyBytes = 65'535;
constexpr uint64_t kMaxKeptText = 65'536;  // longer ones are read over
constexpr uint32_t kMaxAxes = 4;           // of the format
constexpr uint64_t kDefaultAlignment = 32;
constexpr std::string_view kShapeKey = "comfy.gguf.orig_shape.";
constexpr std::string_view kAlignmentKey = "general.alignment";

struct TypeRow {
  GgufType type;
  std::string_view name;
  GgufBlock block;
  std::optional<DType> plain = {};
};
constexpr TypeRow kTypes[] = {
    {GgufType::kF32, "F32", {1, 4}, DType::kF32},
    {GgufType::kF16, "F16", {1, 2}, DType::kF16},
    {GgufType::kBF16, "BF16", {1, 2}, DType::kBF16},
    {GgufType::kF64, "F64", {1, 8}, DType::kF64},
    {GgufType::kI8, "I8", {1, 1}, DType::kI8},
    {GgufType::kI16, "I16", {1, 2}, DType::kI16},
    {GgufType::kI32, "I32", {1, 4}, DType::kI32},
    {GgufType::kI64, "I64", {1, 8}, DType::kI64},
    {GgufType::kQ4_0, "Q4_0", {32, 18}},
    {GgufType::kQ4_1, "Q4_1", {32, 20}},
    {GgufType::kQ5_0, "Q5_0", {32, 22}},
    {GgufType::kQ5_1, "Q5_1", {32, 24}},
    {GgufType::kQ8_0, "Q8_0", {32, 34}},
    {GgufType::kQ2_K, "Q2_K", {256, 84}},
    {GgufType::kQ3_K, "Q3_K", {256, 110}},
    {GgufType::kQ4_K, "Q4_K", {256, 144}},
    {GgufType::kQ5_K, "Q5_K", {256, 176}},
    {GgufType::kQ6_K, "Q6_K", {256, 210}},
};
// Types of the format that are not read.
constexpr std::pair<uint32_t, std::string_view> kOthers[] = {
    {9, "Q8_1"},    {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {29, "IQ1_M"},   {34, "TQ1_0"},
    {35, "TQ2_0"},  {39, "MXFP4"}, {40, "NVFP4"},   {41, "Q1_0"},
};

const TypeRow* find_type(uint32_t number) {
  const auto* found = std::ranges::find(kTypes, static_cast<GgufType>(number), &TypeRow::type);
  return found == std::end(kTypes) ? nullptr : found;
}

const TypeRow& row_of(GgufType type) {
  return *find_type(static_cast<uint32_t>(type));
}

enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64,
  kCount
};
constexpr std::array<uint64_t, 13> kValueBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

uint64_t bytes_of(ValueType type) {
  return kValueBytes.at(static_cast<size_t>(type));
}

// Reads the header from its beginning to its end, through a window of the file.
class GgufCursor {
 public:
  GgufCursor(uint64_t file_size, const ReadBytes& read) : size_(file_size), read_(read) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return size_ - at_; }

  template <typename T>
  T number() {
    T value;
    const std::string_view bytes = take(sizeof(T));
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string text(uint64_t bytes) { return std::string(take(bytes)); }
  void skip(uint64_t bytes) {
    check(bytes);
    at_ += bytes;
  }

 private:
  void check(uint64_t bytes) const {
    if (bytes > left())
      throw ParseError(
          "GGUF_CUT",
          "the header needs " + std::to_string(bytes) + " bytes here, the file ends before that",
          "the file was cut, download it again", at_);
    if (at_ + bytes > kMaxGgufHeaderBytes)
      throw ParseError(
          "GGUF_HEADER",
          "the header is longer than " + std::to_string(kMaxGgufHeaderBytes) + " bytes",
          kDownloadAgain, at_);
  }
  std::string_view take(uint64_t bytes) {
    check(bytes);
    if (at_ < begin_ || at_ + bytes > begin_ + window_.size()) {
      begin_ = at_;
      window_ = read_(at_, std::min(size_ - at_, std::max(bytes, kWindowBytes)));
    }
    const std::string_view taken = std::string_view(window_).substr(at_ - begin_, bytes);
    at_ += bytes;
    return taken;
  }

  uint64_t size_, at_ = 0;
  const ReadBytes& read_;
  uint64_t begin_ = 0;
  std::string window_;
};

class GgufReader {
 public:
  GgufReader(uint64_t file_size, const ReadBytes& read) : size_(file_size), in_(file_size, read) {}

  GgufIndex index() {
    read_beginning();
    for (uint64_t i = 0; i < num_values_; ++i) read_value();
    for (uint64_t i = 0; i < num_tensors_; ++i) read_tensor();
    index_.header_end = in_.at();
    place_tensors();
    return std::move(index_);
  }

 private:
  void read_beginning() {
    if (in_.left() < 8 || in_.text(4) != "GGUF")
      throw ParseError("GGUF_MAGIC", "is no GGUF file", kDownloadAgain, 0);
    const auto version = in_.number<uint32_t>();
    if (version != 2 && version != 3) {
      const bool is_turned = version == 0x02000000u || version == 0x03000000u;
      throw ParseError("GGUF_VERSION",
                       is_turned ? std::string("is a big-endian GGUF file")
                                 : "is GGUF of version " + std::to_string(version),
                       "versions 2 and 3, little endian, are read: convert the model again", 4);
    }
    num_tensors_ = in_.number<uint64_t>();
    num_values_ = in_.number<uint64_t>();
    // The shortest of each take so many bytes: more of them do not fit.
    constexpr uint64_t kLeastTensor = 8 + 4 + 4 + 8, kLeastValue = 8 + 4 + 1;
    if (num_tensors_ > in_.left() / kLeastTensor || num_values_ > in_.left() / kLeastValue)
      throw ParseError("GGUF_CUT",
                       "says that it has " + std::to_string(num_tensors_) + " tensors and " +
                           std::to_string(num_values_) + " values, which it is too short for",
                       kDownloadAgain, 8);
  }

  std::string read_text(uint64_t most, const char* tag, const std::string& what) {
    const uint64_t at = in_.at();
    const auto bytes = in_.number<uint64_t>();
    if (bytes > most)
      throw ParseError(tag,
                       what + " is " + std::to_string(bytes) + " bytes long, " +
                           std::to_string(most) + " are the most",
                       kDownloadAgain, at);
    std::string text = in_.text(bytes);
    if (find_invalid_utf8(text) != std::string_view::npos)
      throw ParseError(tag, what + " is no UTF-8", kDownloadAgain, at);
    return text;
  }

  ValueType read_type(const std::string& key) {
    const uint64_t at = in_.at();
    const auto type = in_.number<uint32_t>();
    if (type >= static_cast<uint32_t>(ValueType::kCount))
      throw ParseError(
          "GGUF_VALUE",
          key + " is of type " + std::to_string(type) + ", which the format does not have",
          kDownloadAgain, at);
    return static_cast<ValueType>(type);
  }

  void read_value() {
    const uint64_t at = in_.at();
    const std::string key = read_text(kMaxKeyBytes, "GGUF_KEY", "a key of the metadata");
    const std::string quoted = "metadata " + quote_and_escape(key);
    const ValueType type = read_type(quoted);
    if (type == ValueType::kArray) return read_array(key, quoted);
    std::string text = type == ValueType::kText ? read_kept_text() : read_number(type);
    if (key == kAlignmentKey) read_alignment(type, text, at);
    if (!index_.metadata.emplace(key, std::move(text)).second)
      throw ParseError("GGUF_KEY", quoted + " is there twice", kDownloadAgain, at);
  }

  std::string read_kept_text() {
    const auto bytes = in_.number<uint64_t>();
    if (bytes > kMaxKeptText) {
      in_.skip(bytes);
      return {};
    }
    std::string text = in_.text(bytes);
    return find_invalid_utf8(text) == std::string_view::npos ? text : std::string();
  }

  std::string read_number(ValueType type) {
    switch (type) {
      case ValueType::kU8:
        return std::to_string(in_.number<uint8_t>());
      case ValueType::kI8:
        return std::to_string(in_.number<int8_t>());
      case ValueType::kU16:
        return std::to_string(in_.number<uint16_t>());
      case ValueType::kI16:
        return std::to_string(in_.number<int16_t>());
      case ValueType::kU32:
        return std::to_string(in_.number<uint32_t>());
      case ValueType::kI32:
        return std::to_string(in_.number<int32_t>());
      case ValueType::kU64:
        return std::to_string(in_.number<uint64_t>());
      case ValueType::kI64:
        return std::to_string(in_.number<int64_t>());
      case ValueType::kBool:
        return in_.number<uint8_t>() != 0 ? "true" : "false";
      case ValueType::kF32:
        return real_text(in_.number<float>());
      default:
        return real_text(in_.number<double>());
    }
  }
  template <typename Real>
  static std::string real_text(Real value) {
    std::array<char, 64> buffer;
    const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
    return {buffer.data(), end};
  }

  void read_alignment(ValueType type, const std::string& text, uint64_t at) {
    uint64_t value = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), value).ptr;
    const bool is_whole = type != ValueType::kText && end == text.data() + text.size();
    if (!is_whole || !std::has_single_bit(value) || value > (uint64_t{1} << 30))
      throw ParseError("GGUF_ALIGNMENT",
                       "general.alignment is " + quote_and_escape(text) + ", and no power of two",
                       kDownloadAgain, at);
    alignment_ = value;
  }

  void read_array(const std::string& key, const std::string& quoted) {
    const uint64_t at = in_.at();
    const ValueType type = read_type(quoted);
    const auto count = in_.number<uint64_t>();
    if (type == ValueType::kArray)
      throw ParseError("GGUF_VALUE", quoted + " is an array of arrays", kDownloadAgain, at);
    if (type == ValueType::kText) {
      if (count > in_.left() / 8)
        throw ParseError("GGUF_CUT", quoted + " has more texts than the file has room for",
                         kDownloadAgain, at);
      for (uint64_t i = 0; i < count; ++i) in_.skip(in_.number<uint64_t>());
      return;
    }
    const uint64_t bytes = bytes_of(type);
    if (count > in_.left() / bytes)
      throw ParseError("GGUF_CUT", quoted + " has more values than the file has room for",
                       kDownloadAgain, at);
    if (key.starts_with(kShapeKey) && type == ValueType::kI32 && count <= kMaxRank) {
      std::vector<int64_t>& shape = shapes_[key.substr(kShapeKey.size())];
      shape.clear();
      for (uint64_t i = 0; i < count; ++i) shape.push_back(in_.number<int32_t>());
      return;
    }
    in_.skip(count * bytes);
  }

  void read_tensor() {
    const uint64_t at = in_.at();
    GgufTensor tensor;
    tensor.name = read_text(kMaxNameBytes, "GGUF_NAME", "the name of a tensor");
    const std::string quoted = "tensor " + quote_and_escape(tensor.name);
    if (!names_.insert(tensor.name).second)
      throw ParseError("GGUF_DUPLICATE", quoted + " is there twice", kDownloadAgain, at);
    const auto axes = in_.number<uint32_t>();
    if (axes > kMaxAxes)
      throw ParseError("GGUF_SHAPE",
                       quoted + " has " + std::to_string(axes) + " axes, 4 are the most",
                       kDownloadAgain, at);
    for (uint32_t i = 0; i < axes; ++i)
      tensor.shape.insert(tensor.shape.begin(), read_length(quoted));
    const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
    const auto type = in_.number<uint32_t>();
    const TypeRow* row = find_type(type);
    if (row == nullptr) throw unknown_type(quoted, type, at);
    tensor.type = row->type;
    if (columns % row->block.values != 0)
      throw ParseError("GGUF_SHAPE",
                       quoted + ": rows of " + std::to_string(columns) +
                           " values are no blocks of " + std::to_string(row->block.values) +
                           ", as " + std::string(row->name) + " has",
                       kDownloadAgain, at);
    const uint64_t bytes = counted_bytes(tensor, *row, quoted, at);
    tensor.begin = in_.number<uint64_t>();
    tensor.end = bytes;  // becomes an end when the header's is known
    take_shape(tensor, quoted, at);
    index_.tensors.push_back(std::move(tensor));
  }

  int64_t read_length(const std::string& quoted) {
    const uint64_t at = in_.at();
    const auto length = in_.number<uint64_t>();
    if (length > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      throw ParseError("GGUF_SHAPE", quoted + " is " + std::to_string(length) + " long",
                       kDownloadAgain, at);
    return static_cast<int64_t>(length);
  }

  static ParseError unknown_type(const std::string& quoted, uint32_t type, uint64_t at) {
    for (const auto& [number, name] : kOthers) {
      if (number == type)
        return {"GGUF_TYPE", quoted + " is stored as " + std::string(name) + ", which is not read",
                "take the model in Q4_0 to Q8_0 or Q2_K to Q6_K", at};
    }
    return {"GGUF_TYPE", quoted + " is of type " + std::to_string(type) + ", which is not known",
            kDownloadAgain, at};
  }

  static uint64_t counted_bytes(const GgufTensor& tensor, const TypeRow& row,
                                const std::string& quoted, uint64_t at) {
    uint64_t count = 1;
    bool fits = true;
    for (const int64_t length : tensor.shape)
      fits &= !__builtin_mul_overflow(count, static_cast<uint64_t>(length), &count);
    fits &= count <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    uint64_t bytes = 0;
    fits &= !__builtin_mul_overflow(count / static_cast<uint64_t>(row.block.values),
                                    static_cast<uint64_t>(row.block.bytes), &bytes);
    if (!fits)
      throw ParseError("GGUF_SIZE", quoted + " has more bytes than can be counted", kDownloadAgain,
                       at);
    return bytes;
  }

  // The shape that the tensor had before its axes were joined.
  void take_shape(GgufTensor& tensor, const std::string& quoted, uint64_t at) {
    const auto found = shapes_.find(tensor.name);
    if (found == shapes_.end()) return;
    const auto count_of = [](const std::vector<int64_t>& shape) -> std::optional<int64_t> {
      int64_t count = 1;
      for (const int64_t length : shape) {
        if (length < 0 || __builtin_mul_overflow(count, length, &count)) return std::nullopt;
      }
      return count;
    };
    if (count_of(found->second) != count_of(tensor.shape))
      throw ParseError("GGUF_SHAPE",
                       quoted + ": the shape that it had has another number of values",
                       kDownloadAgain, at);
    tensor.shape = found->second;
  }

  // Every tensor's bytes, behind the header, inside the file, and shared with no other one's.
  void place_tensors() {
    const uint64_t data = (in_.at() + alignment_ - 1) / alignment_ * alignment_;
    std::vector<const GgufTensor*> order;
    for (GgufTensor& tensor : index_.tensors) {
      const std::string quoted = "tensor " + quote_and_escape(tensor.name);
      if (tensor.begin % alignment_ != 0)
        throw ParseError("GGUF_OFFSET",
                         quoted + " begins at " + std::to_string(tensor.begin) +
                             ", which is no multiple of " + std::to_string(alignment_),
                         kDownloadAgain);
      const uint64_t bytes = tensor.end;
      if (data > size_ || tensor.begin > size_ - data || bytes > size_ - data - tensor.begin)
        throw ParseError("GGUF_OFFSET", quoted + " ends behind the file",
                         "the file was cut, download it again");
      tensor.begin += data;
      tensor.end = tensor.begin + bytes;
      if (bytes > 0) order.push_back(&tensor);
    }
    std::ranges::sort(order, {}, &GgufTensor::begin);
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i]->begin < order[i - 1]->end)
        throw ParseError("GGUF_OFFSET",
                         "tensors " + quote_and_escape(order[i - 1]->name) + " and " +
                             quote_and_escape(order[i]->name) + " share bytes",
                         kDownloadAgain);
    }
  }

  uint64_t size_;
  GgufCursor in_;
  GgufIndex index_;
  uint64_t num_tensors_ = 0, num_values_ = 0, alignment_ = kDefaultAlignment;
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace

GgufBlock block_of(GgufType type) {
  return row_of(type).block;
}

std::string_view type_name(GgufType type) {
  return row_of(type).name;
}

std::optional<DType> plain_dtype(GgufType type) {
  return row_of(type).plain;
}

GgufIndex read_gguf(uint64_t file_size, const ReadBytes& read) {
  return GgufReader(file_size, read).index();
}

}  // namespace atelier::formats
