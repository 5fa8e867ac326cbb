#include "host/files/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/bulk_reader.h"
#include "host/files/config_json.h"
#include "host/files/file_reader.h"
#include "host/report/problems.h"

namespace atelier::files {

namespace {

TensorIndex::Config parse(const ConfigText& text) {
  try {
    return parse_config(text.json);
  } catch (const formats::ParseError& error) {
    throw at_file(text.place, error, ErrorCode::kDataLoss);
  } catch (const Error& error) {
    throw error.at(display_path(text.place));
  }
}

bool is_8_bit_float(const TensorMeta& meta) {
  return meta.dtype == at::kFloat8_e4m3fn || meta.dtype == at::kFloat8_e5m2;
}

// One scale for the whole tensor, or one for each row.
bool is_scale_of(const TensorMeta& scale, const TensorMeta& tensor) {
  if (!c10::isFloatingType(scale.dtype) || c10::elementSize(scale.dtype) == 1) return false;
  const int64_t count = c10::multiply_integers(scale.shape);
  if (count == 1) return true;
  return !tensor.shape.empty() && count == tensor.shape.front() && scale.shape.front() == count;
}

PackedTensor gguf_tensor(const FileTensor& entry) {
  const auto bytes = static_cast<int64_t>(entry.end - entry.begin);
  return {.packing = *packing_of(*entry.codes),
          .shape = entry.shape,
          .parts = {{entry.name, {at::kByte, {bytes}}}}};
}

}  // namespace

formats::ShardIndex read_shard_index(const std::string& path) {
  const std::string text = read_text_file(path);
  try {
    return formats::parse_shard_index(text);
  } catch (const formats::ParseError& error) {
    throw at_file(path, error, ErrorCode::kDataLoss);
  }
}

at::ScalarType scalar_type(formats::DType dtype) {
  using formats::DType;
  switch (dtype) {
    case DType::kBool:
      return at::kBool;
    case DType::kU8:
      return at::kByte;
    case DType::kI8:
      return at::kChar;
    case DType::kF8E5M2:
      return at::kFloat8_e5m2;
    case DType::kF8E4M3:
      return at::kFloat8_e4m3fn;
    case DType::kF8E8M0:
      return at::kFloat8_e8m0fnu;
    case DType::kF8E4M3Fnuz:
      return at::kFloat8_e4m3fnuz;
    case DType::kF8E5M2Fnuz:
      return at::kFloat8_e5m2fnuz;
    case DType::kI16:
      return at::kShort;
    case DType::kU16:
      return at::kUInt16;
    case DType::kF16:
      return at::kHalf;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kI32:
      return at::kInt;
    case DType::kU32:
      return at::kUInt32;
    case DType::kF32:
      return at::kFloat;
    case DType::kC64:
      return at::kComplexFloat;
    case DType::kF64:
      return at::kDouble;
    case DType::kI64:
      return at::kLong;
    case DType::kU64:
      return at::kUInt64;
    case DType::kF4:
    case DType::kF6E2M3:
    case DType::kF6E3M2:
      break;
  }
  throw Error(ErrorCode::kUnsupported,
              "dtype " + std::string(formats::dtype_name(dtype)) + " is not supported",
              "convert the file to BF16 or F8_E4M3", "ST_PACKING");
}

formats::DType file_dtype(at::ScalarType type) {
  for (int i = 0; i < formats::kNumDTypes; ++i) {
    const auto dtype = static_cast<formats::DType>(i);
    if (formats::dtype_bits(dtype) % 8 != 0) continue;
    if (scalar_type(dtype) == type) return dtype;
  }
  throw Error(ErrorCode::kUnsupported,
              std::string("tensors of type ") + c10::toString(type) + " cannot be saved",
              "convert the tensor first", "ST_PACKING");
}

Checkpoint Checkpoint::open(const CheckpointFiles& found) {
  const std::vector<std::string>& files = found.files;
  Checkpoint checkpoint;
  checkpoint.name_ = found.name;
  checkpoint.files_ = files;
  TensorIndex::Tensors tensors;
  for (size_t i = 0; i < files.size(); ++i) {
    const FileReader file(files[i]);
    const FileTensors found_here = read_tensors(file);
    checkpoint.file_sizes_.push_back(file.size());
    for (const auto& [key, value] : found_here.metadata) checkpoint.metadata_.emplace(key, value);
    for (const FileTensor& entry : found_here.tensors) {
      const std::string quoted = "tensor " + formats::quote_and_escape(entry.name);
      at::ScalarType type;
      try {
        type = scalar_type(entry.dtype);
      } catch (const Error& error) {
        throw error.at(quoted).at(display_path(files[i]));
      }
      const TensorLocation place = {static_cast<int>(i),      entry.begin,
                                    entry.end - entry.begin,  entry.strides,
                                    found_here.is_big_endian, entry.codes.has_value()};
      const auto [it, is_new] = checkpoint.places_.emplace(entry.name, place);
      if (!is_new)
        throw Error(ErrorCode::kInvalidArgument,
                    display_path(files[i]) + ": " + quoted + " is also in " +
                        display_path(files[static_cast<size_t>(it->second.file)]),
                    "pass the shards of one checkpoint only", "SHARD_DUPLICATE");
      tensors.emplace(entry.name, TensorMeta{type, entry.shape});
      checkpoint.bytes_ += place.bytes;
      if (entry.codes) checkpoint.packed_.emplace(entry.name, gguf_tensor(entry));
    }
  }
  if (!found.index_path.empty()) checkpoint.check_against(found.index_path);
  checkpoint.take_packed_tensors(tensors);
  checkpoint.take_scales(tensors);
  checkpoint.config_ = checkpoint.find_config(found);
  checkpoint.index_ = std::make_shared<const TensorIndex>(
      std::move(tensors), checkpoint.config_ ? parse(*checkpoint.config_) : TensorIndex::Config{});
  return checkpoint;
}

std::optional<ConfigText> Checkpoint::find_config(const CheckpointFiles& found) const {
  if (const auto own = metadata_.find(kConfigKey); own != metadata_.end())
    return ConfigText{own->second, name_ + ":__metadata__"};
  if (found.config_path.empty()) return std::nullopt;
  return ConfigText{read_text_file(found.config_path, 16'000'000), found.config_path};
}

Checkpoint Checkpoint::with_config_of(const Checkpoint& other) const {
  Checkpoint changed = *this;
  changed.config_ = other.config_;
  changed.index_ = std::make_shared<const TensorIndex>(index_->tensors(), other.index_->config());
  return changed;
}

Checkpoint Checkpoint::only(const std::function<bool(std::string_view tensor)>& holds) const {
  Checkpoint part = *this;
  TensorIndex::Tensors tensors;
  part.bytes_ = 0;
  for (const auto& [name, meta] : index_->tensors()) {
    if (!holds(name)) continue;
    tensors.emplace(name, meta);
    part.bytes_ += bytes_of(name);
  }
  part.index_ = std::make_shared<const TensorIndex>(std::move(tensors), index_->config());
  return part;
}

void Checkpoint::take_packed_tensors(TensorIndex::Tensors& tensors) {
  const auto read_part = [this](const PackedTensor::Part& part) {
    return read(place(part.name), part.meta, part.meta.dtype);
  };
  try {
    for (auto& [name, tensor] : take_packed(tensors, metadata_, read_part)) {
      for (const PackedTensor::Part& part : tensor.parts)
        places_.find(part.name)->second.is_packed = true;
      packed_.emplace(name, std::move(tensor));
    }
  } catch (const Error& error) {
    throw error.at(display_path(name_));
  }
}

const PackedTensor* Checkpoint::packed(std::string_view tensor) const {
  const auto found = packed_.find(tensor);
  return found == packed_.end() ? nullptr : &found->second;
}

memory::Packed Checkpoint::read_packed(std::string_view tensor) const {
  return files::read_packed(packed_.find(tensor)->second, [this](const PackedTensor::Part& part) {
    return read(place(part.name), part.meta, part.meta.dtype);
  });
}

uint64_t Checkpoint::bytes_of(std::string_view tensor) const {
  const PackedTensor* codes = packed(tensor);
  return codes != nullptr ? codes->bytes() : place(tensor).bytes;
}

// Forms that are not known stay among the tensors, where a family meets and refuses them.
void Checkpoint::take_scales(TensorIndex::Tensors& tensors) {
  static constexpr std::string_view kWeight = ".weight", kMarker = ".scaled_fp8";
  std::vector<std::string> taken;
  for (const auto& [name, meta] : tensors) {
    if (!is_8_bit_float(meta) || !name.ends_with(kWeight)) continue;
    const std::string layer = name.substr(0, name.size() - kWeight.size());
    for (const char* ending : {".weight_scale", ".scale_weight"}) {
      const auto scale = tensors.find(layer + ending);
      if (scale == tensors.end() || !is_scale_of(scale->second, meta)) continue;
      if (!scales_.emplace(name, Scales{scale->first, scale->second}).second) continue;
      taken.push_back(scale->first);
      for (const char* of_input : {".scale_input", ".input_scale"}) {
        if (tensors.contains(layer + of_input)) taken.push_back(layer + of_input);
      }
    }
  }
  for (const auto& [name, meta] : tensors) {
    const bool is_marker = name == kMarker.substr(1) || name.ends_with(kMarker);
    if (is_marker && is_8_bit_float(meta) && !scales_.empty()) taken.push_back(name);
  }
  for (const std::string& name : taken) tensors.erase(name);
}

void Checkpoint::check_against(const std::string& index_path) const {
  const formats::ShardIndex index = read_shard_index(index_path);
  std::vector<std::string> absent;
  std::set<std::string> shards;  // that lack one of them
  for (const auto& [tensor, shard] : index.weight_map) {
    const auto it = places_.find(tensor);
    if (it == places_.end() ||
        std::filesystem::path(files_[static_cast<size_t>(it->second.file)]).filename() != shard) {
      absent.push_back(tensor);
      shards.insert(shard);
    }
  }
  if (!absent.empty())
    throw Error(ErrorCode::kDataLoss,
                display_path(index_path) + ": " + std::to_string(absent.size()) +
                    " tensors are not in the shard that it names, " +
                    report::list_names({shards.begin(), shards.end()}, 3) + ": " +
                    report::list_names(absent, 3),
                "the shards belong to another index; download them again", "INDEX_TENSOR");
}

std::string Checkpoint::folder() const {
  if (files_.empty()) return {};
  const std::string folder = std::filesystem::path(files_.front()).parent_path().string();
  return folder.empty() ? "." : folder;
}

const TensorLocation& Checkpoint::place(std::string_view tensor) const {
  const auto it = places_.find(tensor);
  if (it == places_.end())
    throw Error(ErrorCode::kNotFound,
                display_path(name_) + ": there is no tensor " + formats::quote_and_escape(tensor));
  return it->second;
}

at::Tensor Checkpoint::read(std::string_view tensor, std::optional<at::ScalarType> dtype) const {
  const TensorMeta& meta = *index_->find(tensor);
  const at::ScalarType to = dtype.value_or(meta.dtype);
  if (packed(tensor) != nullptr) return memory::unpack(read_packed(tensor), to);
  return read(place(tensor), meta, to);
}

at::Tensor Checkpoint::read(const TensorLocation& place, const TensorMeta& meta,
                            at::ScalarType to) const {
  at::Tensor out = at::empty(meta.shape, at::TensorOptions(to));
  if (out.numel() == 0) return out;
  if (place.strides.empty() && !place.is_big_endian) {
    read_runs(files_, file_sizes_,
              {{place.file, place.begin, out.numel(), meta.dtype, to, out.data_ptr()}});
    return out;
  }
  // All from its first element to its last, as they lie.
  const auto element = static_cast<int64_t>(c10::elementSize(meta.dtype));
  const int64_t count = static_cast<int64_t>(place.bytes) / element;
  const at::Tensor span = at::empty({count}, at::TensorOptions(meta.dtype));
  read_runs(files_, file_sizes_,
            {{place.file, place.begin, count, meta.dtype, meta.dtype, span.data_ptr()}});
  if (place.is_big_endian) {
    const int64_t number = c10::isComplexType(meta.dtype) ? element / 2 : element;
    auto* bytes = static_cast<char*>(span.data_ptr());
    for (int64_t i = 0; i < count * element; i += number)
      std::reverse(bytes + i, bytes + i + number);
  }
  const at::Tensor ordered =
      place.strides.empty() ? span : span.as_strided(meta.shape, place.strides).contiguous();
  convert_elements(ordered.data_ptr(), meta.dtype, out.data_ptr(), to, out.numel());
  return out;
}

at::Tensor Checkpoint::scales(std::string_view tensor) const {
  const auto found = scales_.find(tensor);
  if (found == scales_.end()) return {};
  const auto& [name, meta] = found->second;
  const TensorLocation& place = this->place(name);
  at::Tensor out = read(place, meta, at::kFloat).flatten();
  if (!at::isfinite(out).all().item<bool>())
    throw Error(ErrorCode::kDataLoss,
                display_path(files_[static_cast<size_t>(place.file)]) + ": tensor " +
                    formats::quote_and_escape(name) + ": a scale is not finite",
                "download the file again", "ST_SCALE");
  return out;
}

}  // namespace atelier::files
