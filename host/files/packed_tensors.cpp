#include "host/files/packed_tensors.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "memory/four_bit.h"

namespace atelier::files {
namespace {

using at::Tensor;
using formats::quote_and_escape;
using memory::Packed;
using memory::Packing;
using nlohmann::json;

constexpr std::string_view kWeight = ".weight";
constexpr int64_t kMostStateBytes = 65'536;
constexpr const char* kDownloadAgain = "the file is damaged, download it again";

Error misfit(const std::string& tensor, const std::string& what) {
  return Error(ErrorCode::kDataLoss, "tensor " + quote_and_escape(tensor) + ": " + what,
               kDownloadAgain, "PACKED_FORM");
}

int64_t count_of(const std::vector<int64_t>& shape) {
  return c10::multiply_integers(shape);
}
int64_t blocks_of(int64_t count, int64_t block) {
  return (count + block - 1) / block;
}

// Finds packed tensors among those of a checkpoint.
class Taker {
 public:
  Taker(TensorIndex::Tensors& tensors, const std::map<std::string, std::string>& metadata,
        const ReadPart& read)
      : tensors_(tensors), metadata_(metadata), read_(read) {}

  PackedTensors take() {
    std::vector<std::pair<std::string, Packing>> states;
    for (const auto& [name, meta] : tensors_) {
      for (const auto& [ending, packing] : kStates) {
        if (name.ends_with(ending))
          states.emplace_back(name.substr(0, name.size() - ending.size()), packing);
      }
    }
    for (const auto& [name, packing] : states) take_four_bit(name, packing);
    for (const auto& [layer, description] : comfy_layers()) take_comfy(layer, description);
    for (const std::string& name : taken_) tensors_.erase(name);
    return std::move(packed_);
  }

 private:
  static constexpr std::pair<std::string_view, Packing> kStates[] = {
      {".quant_state.bitsandbytes__nf4", Packing::kNf4},
      {".quant_state.bitsandbytes__fp4", Packing::kFp4}};

  const TensorMeta* find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  // A tensor of the dtype and so many values; it is taken.
  PackedTensor::Part part(const std::string& of, const std::string& name,
                          std::initializer_list<at::ScalarType> dtypes, int64_t count) {
    const TensorMeta* meta = find(name);
    if (meta == nullptr) throw misfit(of, "there is no " + quote_and_escape(name));
    if (std::ranges::find(dtypes, meta->dtype) == dtypes.end() || count_of(meta->shape) != count)
      throw misfit(of, quote_and_escape(name) + " is " + c10::toString(meta->dtype) + " " +
                           c10::str(at::IntArrayRef(meta->shape)) + ", " +
                           c10::toString(*dtypes.begin()) + " of " + std::to_string(count) +
                           " values expected");
    if (name != of) taken_.insert(name);
    return {name, *meta};
  }
  void put(const std::string& name, PackedTensor tensor) {
    tensors_.at(name) = {at::kBFloat16, tensor.shape};
    packed_.emplace(name, std::move(tensor));
  }

  json read_json(const std::string& of, const std::string& name) {
    const TensorMeta* meta = find(name);
    if (meta->dtype != at::kByte || count_of(meta->shape) > kMostStateBytes)
      throw misfit(of, quote_and_escape(name) + " is no text");
    const Tensor bytes = read_({name, *meta});
    taken_.insert(name);
    try {
      json value = formats::parse_json(
          {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())});
      if (value.is_object()) return value;
    } catch (const formats::ParseError&) {  // told below
    }
    throw misfit(of, quote_and_escape(name) + " is no JSON object");
  }

  // What bitsandbytes writes of a tensor.
  void take_four_bit(const std::string& name, Packing packing) {
    const std::string ending(packing == Packing::kNf4 ? kStates[0].first : kStates[1].first);
    const json state = read_json(name, name + ending);
    PackedTensor tensor{.packing = packing};
    bool is_good = true;
    const auto integer = [&](const json& value, int64_t least, int64_t most) {
      const bool is_whole = value.is_number_integer() && value >= least && value <= most;
      is_good &= is_whole;
      return is_whole ? value.get<int64_t>() : least;
    };
    const auto field = [&](const char* key) { return state.contains(key) ? state[key] : json(); };
    tensor.block = integer(field("blocksize"), 32, 4096);
    const json shape = field("shape");
    is_good &= shape.is_array() && !shape.empty() && shape.size() <= 8;
    int64_t count = 1;
    if (is_good) {
      for (const json& length : shape) {
        tensor.shape.push_back(integer(length, 0, int64_t{1} << 40));
        is_good &= !__builtin_mul_overflow(count, tensor.shape.back(), &count);
      }
    }
    if (!is_good) throw misfit(name, "its quant_state has no blocksize and shape");
    tensor.parts.push_back(codes_of(name, (count + 1) / 2));
    const int64_t blocks = blocks_of(count, tensor.block);
    const std::string prefix = name + ".";
    if (find(prefix + "nested_absmax") == nullptr) {
      tensor.parts.push_back(part(name, prefix + "absmax", {at::kFloat}, blocks));
    } else {
      if (integer(field("nested_blocksize"), 0, 4096) != memory::kScaleBlock)
        throw misfit(name, "its scales are no blocks of " + std::to_string(memory::kScaleBlock));
      if (!field("nested_offset").is_number())
        throw misfit(name, "its quant_state has no nested_offset");
      tensor.offset = state["nested_offset"].get<float>();
      tensor.parts.push_back(part(name, prefix + "absmax", {at::kByte}, blocks));
      tensor.parts.push_back(part(name, prefix + "nested_quant_map", {at::kFloat}, 256));
      tensor.parts.push_back(part(name, prefix + "nested_absmax", {at::kFloat},
                                  blocks_of(blocks, memory::kScaleBlock)));
    }
    part(name, prefix + "quant_map", {at::kFloat}, 16);
    put(name, std::move(tensor));
  }

  // Codes, which may be written as wider numbers.
  PackedTensor::Part codes_of(const std::string& name, int64_t bytes) {
    const TensorMeta* meta = find(name);
    if (meta == nullptr) throw misfit(name, "has a quant_state and is not there");
    const auto held = count_of(meta->shape) * static_cast<int64_t>(c10::elementSize(meta->dtype));
    if (held != bytes)
      throw misfit(name, "has " + std::to_string(held) + " bytes of codes, " +
                             std::to_string(bytes) + " expected");
    return {name, {at::kByte, {bytes}}};
  }

  // What ComfyUI says of layers: in tensors beside them, or in the metadata.
  std::map<std::string, json> comfy_layers() {
    static constexpr std::string_view kMarker = ".comfy_quant";
    std::map<std::string, json> layers;
    std::vector<std::string> markers;
    for (const auto& [name, meta] : tensors_) {
      if (name.ends_with(kMarker)) markers.push_back(name);
    }
    for (const std::string& name : markers) {
      const std::string layer = name.substr(0, name.size() - kMarker.size());
      layers.emplace(layer, read_json(layer + std::string(kWeight), name));
    }
    const auto text = metadata_.find(kQuantizationKey);
    if (text == metadata_.end()) return layers;
    try {
      const json metadata = formats::parse_json(text->second);
      if (metadata.is_object() && metadata.contains("layers") && metadata["layers"].is_object()) {
        for (const auto& [layer, description] : metadata["layers"].items()) {
          if (find(layer + std::string(kWeight)) != nullptr) layers.emplace(layer, description);
        }
        return layers;
      }
    } catch (const formats::ParseError&) {  // told below
    }
    throw Error(ErrorCode::kDataLoss,
                std::string("__metadata__: ") + kQuantizationKey + " is no JSON object of layers",
                kDownloadAgain, "PACKED_FORM");
  }

  void take_comfy(const std::string& layer, const json& description) {
    const std::string name = layer + std::string(kWeight);
    const bool is_named = description.is_object() && description.contains("format") &&
                          description["format"].is_string();
    if (!is_named) throw misfit(name, "its comfy_quant names no format");
    const std::string format = description["format"];
    const bool is_turned = description.value("convrot", json(false)) != json(false) ||
                           find(layer + ".pre_quant_scale") != nullptr;
    const TensorMeta* meta = find(name);
    if (meta == nullptr) throw misfit(name, "has a comfy_quant and is not there");
    if (is_turned) throw unknown_kind(name, format + " of turned or smoothed weights");
    if (format == "float8_e4m3fn" || format == "float8_e5m2") return;  // see Checkpoint::scales()
    if (meta->shape.size() != 2) throw misfit(name, "is no matrix");
    const int64_t rows = meta->shape[0], columns = meta->shape[1];
    if (format == "int8_tensorwise") {
      take_int8(name, layer, rows);
    } else if (format == "nvfp4") {
      PackedTensor tensor{.packing = Packing::kNvfp4, .shape = {rows, 2 * columns}, .block = 16};
      tensor.parts = {part(name, name, {at::kByte}, rows * columns),
                      part(name, layer + ".weight_scale", {at::kFloat8_e4m3fn, at::kByte},
                           blocked_count(rows, columns / 8)),
                      part(name, layer + ".weight_scale_2", {at::kFloat}, 1)};
      put(name, std::move(tensor));
    } else if (format == "mxfp8") {
      PackedTensor tensor{.packing = Packing::kMxfp8, .shape = {rows, columns}, .block = 32};
      tensor.parts = {part(name, name, {at::kFloat8_e4m3fn}, rows * columns),
                      part(name, layer + ".weight_scale", {at::kByte, at::kFloat8_e8m0fnu},
                           blocked_count(rows, columns / 32))};
      put(name, std::move(tensor));
    } else {
      throw unknown_kind(name, format);
    }
    if (find(layer + ".input_scale") != nullptr) taken_.insert(layer + ".input_scale");
  }

  void take_int8(const std::string& name, const std::string& layer, int64_t rows) {
    const TensorMeta meta = *find(name);
    PackedTensor tensor{.packing = Packing::kInt8, .shape = meta.shape};
    const TensorMeta* scale = find(layer + ".weight_scale");
    const bool is_one = scale != nullptr && count_of(scale->shape) == 1;
    tensor.parts = {part(name, name, {at::kChar}, count_of(meta.shape)),
                    part(name, layer + ".weight_scale", {at::kFloat}, is_one ? 1 : rows)};
    put(name, std::move(tensor));
  }

  static Error unknown_kind(const std::string& name, const std::string& format) {
    return Error(ErrorCode::kUnsupported,
                 "tensor " + quote_and_escape(name) + ": is stored as " + quote_and_escape(format) +
                     " (comfy_quant), which is not read",
                 "take the model in float8_e4m3fn, int8_tensorwise, nvfp4, mxfp8 or bf16",
                 "PACKED_KIND");
  }

  // Scales stand in tiles of 128 rows and 4 columns.
  static int64_t blocked_count(int64_t rows, int64_t columns) {
    return blocks_of(rows, 128) * 128 * blocks_of(columns, 4) * 4;
  }

  TensorIndex::Tensors& tensors_;
  const std::map<std::string, std::string>& metadata_;
  const ReadPart& read_;
  PackedTensors packed_;
  std::set<std::string> taken_;
};

// Scales [rows, columns] of tiles of 128 rows and 4 columns, in which 4 rows that are 32 apart
// stand side by side.
Tensor out_of_tiles(const Tensor& scales, int64_t rows, int64_t columns) {
  const int64_t down = blocks_of(rows, 128), across = blocks_of(columns, 4);
  return scales.reshape({down, across, 32, 4, 4})
      .permute({0, 3, 2, 1, 4})
      .reshape({down * 128, across * 4})
      .narrow(0, 0, rows)
      .narrow(1, 0, columns)
      .contiguous();
}

// `flat` as rows of the tensor where these are whole blocks.
Tensor as_rows(const Tensor& flat, const PackedTensor& tensor, int64_t block) {
  const bool is_whole = tensor.shape.size() == 2 && tensor.shape[1] % block == 0;
  return flat.reshape({is_whole ? tensor.shape[0] : 1, -1});
}

// The parts of a packed tensor from those of the file, on whatever device.
Packed arranged(const PackedTensor& tensor, const std::vector<Tensor>& parts) {
  Packed packed{tensor.packing, tensor.shape, {}, tensor.block};
  const at::Device device = parts.front().device();
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape.front();
  switch (tensor.packing) {
    case Packing::kNf4:
    case Packing::kFp4: {
      packed.parts = {as_rows(parts[0], tensor, tensor.block),
                      memory::four_bit_values(tensor.packing).to(device),
                      as_rows(parts[1], tensor, tensor.block)};
      if (parts.size() == 2) break;
      packed.parts.insert(packed.parts.end(), {parts[2].reshape({-1}), parts[3].reshape({-1}),
                                               at::full({1}, tensor.offset, parts[2].options())});
      break;
    }
    case Packing::kInt8:
      packed.parts = {parts[0], parts[1].reshape({-1}).expand({rows}).contiguous()};
      break;
    case Packing::kNvfp4:
      packed.parts = {parts[0],
                      out_of_tiles(parts[1].view(at::kByte), rows, tensor.shape[1] / 16)
                          .view(at::kFloat8_e4m3fn),
                      parts[2].reshape({1})};
      break;
    case Packing::kMxfp8:
      packed.parts = {parts[0], out_of_tiles(parts[1].view(at::kByte), rows, tensor.shape[1] / 32)};
      break;
    default:
      packed.parts = {as_rows(parts[0], tensor, memory::block_size(tensor.packing).values)};
  }
  return packed;
}

}  // namespace

uint64_t PackedTensor::bytes() const {
  uint64_t bytes = 0;
  for (const Part& part : parts)
    bytes += static_cast<uint64_t>(count_of(part.meta.shape)) * c10::elementSize(part.meta.dtype);
  return bytes;
}

std::optional<Packing> packing_of(formats::GgufType type) {
  using formats::GgufType;
  switch (type) {
    case GgufType::kQ4_0:
      return Packing::kQ4_0;
    case GgufType::kQ4_1:
      return Packing::kQ4_1;
    case GgufType::kQ5_0:
      return Packing::kQ5_0;
    case GgufType::kQ5_1:
      return Packing::kQ5_1;
    case GgufType::kQ8_0:
      return Packing::kQ8_0;
    case GgufType::kQ2_K:
      return Packing::kQ2_K;
    case GgufType::kQ3_K:
      return Packing::kQ3_K;
    case GgufType::kQ4_K:
      return Packing::kQ4_K;
    case GgufType::kQ5_K:
      return Packing::kQ5_K;
    case GgufType::kQ6_K:
      return Packing::kQ6_K;
    default:
      return std::nullopt;
  }
}

PackedTensors take_packed(TensorIndex::Tensors& tensors,
                          const std::map<std::string, std::string>& metadata,
                          const ReadPart& read) {
  return Taker(tensors, metadata, read).take();
}

Packed read_packed(const PackedTensor& tensor, const ReadPart& read) {
  std::vector<Tensor> parts;
  for (const PackedTensor::Part& part : tensor.parts) parts.push_back(read(part));
  return arranged(tensor, parts);
}

Packed outline_packed(const PackedTensor& tensor) {
  return read_packed(tensor, [](const PackedTensor::Part& part) {
    return at::empty(part.meta.shape, at::TensorOptions(part.meta.dtype).device(at::kMeta));
  });
}

}  // namespace atelier::files
