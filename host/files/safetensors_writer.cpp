#include "host/files/safetensors_writer.h"

#include <cerrno>
#include <filesystem>
#include <utility>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/files/checkpoint.h"
#include "host/files/content_hash.h"
#include "host/files/file_operations.h"
#include "host/files/file_reader.h"
#include "host/files/temporary_file.h"

namespace atelier::files {

namespace fs = std::filesystem;

WrittenFile write_file(
    const std::string& path,
    const std::function<void(const std::function<void(const void*, size_t)>&)>& fill) {
  std::error_code failure;
  std::string target = path;
  if (fs::is_symlink(path, failure)) {
    const fs::path real = fs::weakly_canonical(path, failure);
    if (!failure) target = real.string();
  }
  if (fs::is_directory(target, failure)) fail_on_file(path, "cannot be written", EISDIR);
  TemporaryFile file(target);
  WrittenFile written;
  ContentHash hash;
  fill([&](const void* bytes, size_t count) {
    file.write(bytes, count);
    hash.add(bytes, count);
    written.bytes += count;
  });
  file.place();
  written.hash = hash.hex();
  return written;
}

WrittenFile write_file(const std::string& path, std::string_view bytes) {
  return write_file(path, [&](const auto& write) { write(bytes.data(), bytes.size()); });
}

WrittenFile write_safetensors(const std::string& path, std::vector<formats::TensorEntry> entries,
                              const std::map<std::string, std::string>& metadata,
                              const std::function<at::Tensor(const std::string&)>& tensor) {
  formats::WrittenHeader header;
  try {
    header = formats::serialize_safetensors_header(std::move(entries), metadata);
  } catch (const formats::ParseError& error) {
    throw at_file(path, error, ErrorCode::kInvalidArgument);
  }
  return write_file(path, [&](const auto& write) {
    write(header.bytes.data(), header.bytes.size());
    for (const formats::TensorEntry& entry : header.tensors) {
      const at::Tensor value = tensor(entry.name).detach().to(at::kCPU).contiguous();
      if (value.nbytes() != entry.end - entry.begin ||
          value.scalar_type() != scalar_type(entry.dtype) ||
          value.sizes() != at::IntArrayRef(entry.shape))
        throw Error(ErrorCode::kInternal, display_path(path) + ": tensor '" + entry.name +
                                              "' is not what its entry in the header says");
      write(value.const_data_ptr(), value.nbytes());
    }
  });
}

WrittenFile write_safetensors(const std::string& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<formats::TensorEntry> entries;
  for (const auto& [name, value] : tensors)
    entries.push_back({name, file_dtype(value.scalar_type()), value.sizes().vec(), 0, 0});
  return write_safetensors(path, std::move(entries), metadata,
                           [&](const std::string& name) { return tensors.find(name)->second; });
}

}  // namespace atelier::files
