#include "host/weights/component_writer.h"

#include <filesystem>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "host/files/safetensors_writer.h"
#include "host/weights/published_tensors.h"

namespace atelier::weights {

namespace fs = std::filesystem;

namespace {

constexpr at::ScalarType kUnscaledType = at::kBFloat16;  // of 8-bit tensors without their scales

at::Tensor read_plain(const files::Checkpoint& source, const std::string& tensor) {
  if (!source.has_scales(tensor)) return source.read(tensor);
  const at::Tensor value = source.read(tensor, at::kFloat), scales = source.scales(tensor);
  std::vector<int64_t> by_row(static_cast<size_t>(value.dim()), 1);
  if (!by_row.empty()) by_row.front() = scales.numel();
  return (value * scales.view(by_row)).to(kUnscaledType);
}

// The source may be gone by now. That is no reason to end a run, which saves again.
at::Tensor copied(const files::Checkpoint& source, const std::string& tensor) {
  try {
    return read_plain(source, tensor);
  } catch (const Error& error) {
    throw Error(ErrorCode::kEnvironment, error.message(),
                "a saved component holds what it does not use of the file that it was read from: "
                "put that back",
                error.tag());
  }
}

// Whether nothing else lies in the folder of a file.
bool stands_alone(const fs::path& file) {
  std::error_code failure;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  fs::directory_iterator it(folder, failure);
  return !failure && std::all_of(begin(it), end(it), [&](const fs::directory_entry& entry) {
    return entry.path().filename() == file.filename();
  });
}

}  // namespace

void write_component(const std::string& path, const files::Checkpoint& source,
                     std::vector<formats::TensorEntry> entries,
                     std::map<std::string, std::string> metadata,
                     const std::function<at::Tensor(const std::string& name)>& tensor) {
  std::set<std::string> given;
  for (const formats::TensorEntry& entry : entries) given.insert(entry.name);
  for (const auto& [name, meta] : source.index().tensors()) {
    if (given.contains(name)) continue;
    const at::ScalarType dtype = source.has_scales(name) ? kUnscaledType : meta.dtype;
    entries.push_back({name, files::file_dtype(dtype), meta.shape, 0, 0});
  }
  if (source.config()) metadata[files::kConfigKey] = source.config()->json;
  files::write_safetensors(path, std::move(entries), metadata, [&](const std::string& name) {
    return given.contains(name) ? tensor(name) : copied(source, name);
  });
  if (!source.config() || !stands_alone(path)) return;
  const std::string& json = source.config()->json;
  files::write_file((fs::path(path).parent_path() / "config.json").string(),
                    [&](const auto& write) { write(json.data(), json.size()); });
}

void save_component(nn::Module& module, const WeightMap& rules, const std::string& prefix,
                    const std::string& path, const std::map<std::string, std::string>& metadata,
                    const files::Checkpoint* source, std::optional<at::ScalarType> dtype,
                    bool comes_from_all) {
  const std::vector<PublishedTensor> tensors =
      published_tensors(module, rules, prefix, source != nullptr ? &source->index() : nullptr);
  std::vector<formats::TensorEntry> entries;
  std::map<std::string, const PublishedTensor*> by_name;
  const auto dtype_of = [&](const PublishedTensor& tensor) {
    return dtype && at::isFloatingType(tensor.dtype) ? *dtype : tensor.dtype;
  };
  for (const PublishedTensor& tensor : tensors) {
    entries.push_back({tensor.name, files::file_dtype(dtype_of(tensor)), tensor.shape, 0, 0});
    by_name.emplace(tensor.name, &tensor);
  }
  std::vector<formats::TensorEntry> order;
  if (comes_from_all) order = formats::serialize_safetensors_header(entries, {}).tensors;
  size_t drawn = 0;
  const auto value = [&](const std::string& name) {
    const PublishedTensor& tensor = *by_name.at(name);
    const at::Tensor value = tensor.value();
    ++drawn;
    return value.to(dtype_of(tensor));
  };
  // Begins with a tensor that could not be drawn: others may wait for it.
  const auto draw_rest = [&] {
    const at::NoGradGuard no_grad;
    for (; drawn < order.size(); ++drawn) {
      for (const auto& source : by_name.at(order[drawn].name)->sources) (void)source.weight->draw();
    }
  };
  if (path.empty()) return draw_rest();
  try {
    if (source != nullptr) {
      write_component(path, *source, std::move(entries), metadata, value);
    } else {
      files::write_safetensors(path, std::move(entries), metadata, value);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPeerLost) draw_rest();
    throw;
  } catch (...) {
    draw_rest();
    throw;
  }
}

}  // namespace atelier::weights
