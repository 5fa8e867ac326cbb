#include "host/samples/encoding_store.h"

#include <filesystem>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/checkpoint.h"
#include "host/files/content_hash.h"
#include "host/files/file_reader.h"
#include "host/files/safetensors_writer.h"

namespace atelier::samples {

namespace fs = std::filesystem;

namespace {

using files::FileReader;

constexpr const char* kKindField = "atelier.kind";
constexpr const char* kHashField = "atelier.content";  // of the tensors, see content_of()
constexpr const char* kKeyField = "atelier.key";
constexpr const char* kMakeAnew = "run --task sft:data_process again, which makes it anew";

std::string content_of(const NamedTensors& tensors) {
  files::ContentHash hash;
  for (const auto& [name, tensor] : tensors) {
    hash.add(name).add(static_cast<int64_t>(tensor.scalar_type())).add(tensor.dim());
    for (const int64_t size : tensor.sizes()) hash.add(size);
    hash.add(tensor.const_data_ptr(), tensor.nbytes());
  }
  return hash.hex();
}

// Throws Error for what is no entry of this stage, or that of another key.
formats::SafetensorsHeader entry_header(const FileReader& file, std::string_view stage,
                                        std::string_view key) {
  formats::SafetensorsHeader header = files::read_header(file);
  const auto said = header.metadata.find(kKindField);
  if (said == header.metadata.end() || said->second != stage ||
      !header.metadata.contains(kHashField))
    throw Error(ErrorCode::kDataLoss,
                files::display_path(file.path()) + ": is no cached entry of " + std::string(stage));
  const auto written = header.metadata.find(kKeyField);  // earlier versions wrote none
  if (written != header.metadata.end() && written->second != key)
    throw Error(ErrorCode::kDataLoss, files::display_path(file.path()) + ": is the entry " +
                                          formats::quote_and_escape(written->second) +
                                          " under another name");
  return header;
}

}  // namespace

std::string EncodingStore::path(std::string_view stage, std::string_view key) const {
  return (fs::path(folder_) / stage / (std::string(key) + ".safetensors")).string();
}

std::optional<EntryShapes> EncodingStore::find(std::string_view stage, std::string_view key) const {
  const std::string file = path(stage, key);
  std::error_code failure;
  if (!fs::exists(file, failure)) return std::nullopt;
  try {
    EntryShapes shapes;
    for (formats::TensorEntry& entry : entry_header(FileReader(file), stage, key).tensors)
      shapes.emplace(std::move(entry.name), std::move(entry.shape));
    return shapes;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kEnvironment) throw;
    return std::nullopt;
  }
}

NamedTensors EncodingStore::read(std::string_view stage, std::string_view key) const {
  const std::string name = path(stage, key);
  try {
    const FileReader file(name);
    const formats::SafetensorsHeader header = entry_header(file, stage, key);
    NamedTensors tensors;
    for (const formats::TensorEntry& entry : header.tensors) {
      at::Tensor value = at::empty(entry.shape, files::scalar_type(entry.dtype));
      file.read(value.mutable_data_ptr(), header.data_begin + entry.begin, value.nbytes());
      tensors.emplace(entry.name, std::move(value));
    }
    if (content_of(tensors) != header.metadata.at(kHashField))
      throw Error(ErrorCode::kDataLoss,
                  files::display_path(name) + ": its values are not those that were written");
    return tensors;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kEnvironment) throw;
    const bool is_gone = error.code() == ErrorCode::kNotFound;
    throw Error(ErrorCode::kDataLoss, error.message(),
                (is_gone ? "" : "delete it and ") + std::string(kMakeAnew), "CACHE_ENTRY");
  }
}

void EncodingStore::write(std::string_view stage, std::string_view key,
                          const NamedTensors& tensors) const {
  const std::string name = path(stage, key);
  std::error_code failure;
  fs::create_directories(fs::path(name).parent_path(), failure);
  if (failure)
    throw Error(ErrorCode::kEnvironment,
                files::display_path(fs::path(name).parent_path().string()) +
                    ": the folder cannot be made: " + failure.message(),
                "check --cache_path", "FILE_WRITE");
  NamedTensors values;
  for (const auto& [tensor_name, tensor] : tensors)
    values.emplace(tensor_name, tensor.detach().to(at::kCPU).contiguous());
  files::write_safetensors(name, values,
                           {{kKindField, std::string(stage)},
                            {kKeyField, std::string(key)},
                            {kHashField, content_of(values)}});
}

}  // namespace atelier::samples
