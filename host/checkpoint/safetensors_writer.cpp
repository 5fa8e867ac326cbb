#include "host/checkpoint/safetensors_writer.h"

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>
#include <utility>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/checkpoint/checkpoint.h"
#include "host/checkpoint/content_hash.h"
#include "host/checkpoint/file_operations.h"
#include "host/checkpoint/file_reader.h"

namespace atelier::checkpoint {

namespace fs = std::filesystem;

namespace {

// A file beside its final place; gone unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target)
      : target_(target), folder_(parent_folder(target)) {
    static std::atomic<int> counter = 0;
    path_ = folder_ + "/." + fs::path(target).filename().string().substr(0, 200) + "." +
            std::to_string(getpid()) + "." + std::to_string(counter++) + ".tmp";
    descriptor_ = files_.open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail_on_file(target, "cannot be written", errno);
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) files_.close(descriptor_);
    if (!path_.empty()) files_.unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(const void* bytes, size_t count) {
    const int why = write_all(descriptor_, bytes, count);
    if (why != 0) fail_on_file(target_, "cannot be written", why);
    hash_.add(bytes, count);
    bytes_ += count;
  }

  WrittenFile commit() {
    if (files_.fsync(descriptor_) != 0) fail_on_file(target_, "cannot be flushed", errno);
    const int closed = files_.close(std::exchange(descriptor_, -1));
    if (closed != 0) fail_on_file(target_, "cannot be closed", errno);
    if (files_.rename(path_.c_str(), target_.c_str()) != 0)
      fail_on_file(target_, "cannot be renamed into place", errno);
    path_.clear();
    flush_folder(folder_, target_);
    return {bytes_, hash_.hex()};
  }

 private:
  FileOperations& files_ = file_operations();
  std::string target_, folder_, path_;
  int descriptor_ = -1;
  ContentHash hash_;
  uint64_t bytes_ = 0;
};

}  // namespace

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
  fill([&](const void* bytes, size_t count) { file.write(bytes, count); });
  return file.commit();
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

}  // namespace atelier::checkpoint
