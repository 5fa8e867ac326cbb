#include "host/checkpoint/safetensors_writer.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/checkpoint/checkpoint.h"
#include "host/checkpoint/file_reader.h"

namespace atelier::checkpoint {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const std::string& path, const char* step, int why) {
  throw Error(
      ErrorCode::kEnvironment, display_path(path) + ": " + step + ": " + std::strerror(why),
      why == ENOSPC || why == EDQUOT ? "free some space" : "check the folder and its permissions",
      "FILE_WRITE");
}

// A file beside its final place; gone unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target) : target_(target) {
    static std::atomic<int> counter = 0;
    const fs::path path(target);
    folder_ = path.parent_path().empty() ? "." : path.parent_path().string();
    path_ = folder_ + "/." + path.filename().string().substr(0, 200) + "." +
            std::to_string(getpid()) + "." + std::to_string(counter++) + ".tmp";
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail(target, "cannot be written", errno);
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!path_.empty()) unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(const void* bytes, size_t count) {
    const auto* from = static_cast<const char*>(bytes);
    while (count > 0) {
      const ssize_t done = ::write(descriptor_, from, std::min<size_t>(count, size_t{1} << 30));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(target_, "cannot be written", errno);
      from += done;
      count -= static_cast<size_t>(done);
    }
  }

  void commit() {
    if (fsync(descriptor_) != 0) fail(target_, "cannot be flushed", errno);
    const int closed = close(std::exchange(descriptor_, -1));
    if (closed != 0) fail(target_, "cannot be closed", errno);
    if (rename(path_.c_str(), target_.c_str()) != 0)
      fail(target_, "cannot be renamed into place", errno);
    path_.clear();
    const int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) fail(target_, "its folder cannot be flushed", errno);
    const int flushed = fsync(folder);
    const int why = errno;
    close(folder);
    // Some network file systems cannot flush folders and say so.
    if (flushed != 0 && why != EINVAL && why != ENOTSUP)
      fail(target_, "its folder cannot be flushed", why);
  }

 private:
  std::string target_, folder_, path_;
  int descriptor_ = -1;
};

}  // namespace

void write_file(const std::string& path,
                const std::function<void(const std::function<void(const void*, size_t)>&)>& fill) {
  std::error_code failure;
  std::string target = path;
  if (fs::is_symlink(path, failure)) {
    const fs::path real = fs::weakly_canonical(path, failure);
    if (!failure) target = real.string();
  }
  if (fs::is_directory(target, failure)) fail(path, "cannot be written", EISDIR);
  TemporaryFile file(target);
  fill([&](const void* bytes, size_t count) { file.write(bytes, count); });
  file.commit();
}

void write_safetensors(const std::string& path, std::vector<formats::TensorEntry> entries,
                       const std::map<std::string, std::string>& metadata,
                       const std::function<at::Tensor(const std::string&)>& tensor) {
  formats::WrittenHeader header;
  try {
    header = formats::serialize_safetensors_header(std::move(entries), metadata);
  } catch (const formats::ParseError& error) {
    throw at_file(path, error, ErrorCode::kInvalidArgument);
  }
  write_file(path, [&](const auto& write) {
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

void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<formats::TensorEntry> entries;
  for (const auto& [name, value] : tensors)
    entries.push_back({name, file_dtype(value.scalar_type()), value.sizes().vec(), 0, 0});
  write_safetensors(path, std::move(entries), metadata,
                    [&](const std::string& name) { return tensors.find(name)->second; });
}

}  // namespace atelier::checkpoint
