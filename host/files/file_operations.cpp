#include "host/files/file_operations.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "atelier/error.h"

#include "host/files/file_reader.h"
#include "host/report/open_failure.h"

namespace atelier::files {

namespace {

constexpr size_t kMaxWrite = size_t{1} << 30;  // write takes at most 2 GiB at once

FileOperations& real_operations() {
  static FileOperations operations;
  return operations;
}

std::atomic<FileOperations*> replaced = nullptr;  // NOLINT: there is one system, too

}  // namespace

FileOperations::~FileOperations() = default;

int FileOperations::open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}
ssize_t FileOperations::write(int file, const void* bytes, size_t count) {
  return ::write(file, bytes, count);
}
int FileOperations::truncate(int file, off_t size) {
  return ::ftruncate(file, size);
}
int FileOperations::fsync(int file) {
  return ::fsync(file);
}
int FileOperations::close(int file) {
  return ::close(file);
}
int FileOperations::rename(const char* from, const char* to) {
  return ::rename(from, to);
}
int FileOperations::unlink(const char* path) {
  return ::unlink(path);
}
int FileOperations::mkdir(const char* path, mode_t mode) {
  return ::mkdir(path, mode);
}
int FileOperations::rmdir(const char* path) {
  return ::rmdir(path);
}
int FileOperations::statvfs(const char* path, struct statvfs* space) {
  return ::statvfs(path, space);
}
int FileOperations::flock(int file) {
  return ::flock(file, LOCK_EX | LOCK_NB);
}

FileOperations& file_operations() {
  FileOperations* operations = replaced;
  return operations != nullptr ? *operations : real_operations();
}

ReplacedFileOperations::ReplacedFileOperations(FileOperations& operations) {
  replaced = &operations;
}
ReplacedFileOperations::~ReplacedFileOperations() {
  replaced = nullptr;
}

void fail_on_file(const std::string& path, const char* step, int why) {
  const bool is_full = why == ENOSPC || why == EDQUOT;
  throw Error(report::is_wrong_path(why) ? ErrorCode::kInvalidArgument : ErrorCode::kEnvironment,
              display_path(path) + ": " + step + ": " + std::strerror(why),
              is_full                      ? "free some space"
              : report::is_wrong_path(why) ? "check the path"
                                           : "check the folder and its permissions",
              "FILE_WRITE");
}

int write_all(int file, const void* bytes, size_t count) {
  const auto* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t done = file_operations().write(file, from, std::min(count, kMaxWrite));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    from += done;
    count -= static_cast<size_t>(done);
  }
  return 0;
}

void flush_folder(const std::string& folder, const std::string& about) {
  FileOperations& files = file_operations();
  const int descriptor = files.open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_on_file(about, "its folder cannot be flushed", errno);
  const int flushed = files.fsync(descriptor);
  const int why = errno;
  files.close(descriptor);
  if (flushed != 0 && why != EINVAL && why != ENOTSUP)
    fail_on_file(about, "its folder cannot be flushed", why);
}

std::string parent_folder(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace atelier::files
