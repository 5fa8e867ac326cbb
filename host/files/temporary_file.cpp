#include "host/files/temporary_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "host/files/file_operations.h"

namespace atelier::files {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = ".atelier-tmp-";
constexpr size_t kNumDigits = 8;
constexpr size_t kMostOfName = 200;  // file systems allow 255 bytes

// Once for each folder and program: listing a large folder takes time.
void clean_once(const std::string& folder) {
  if (is_temporary(fs::path(folder).filename().string())) return;  // just made
  static std::mutex mutex;
  static std::set<std::string> cleaned;
  {
    const std::lock_guard lock(mutex);
    if (!cleaned.insert(folder).second) return;
  }
  remove_abandoned(folder);
}

}  // namespace

std::string temporary_path(const std::string& target) {
  std::array<char, kNumDigits + 1> digits;
  std::snprintf(digits.data(), digits.size(), "%08x", std::random_device{}());
  const std::string name = fs::path(target).filename().string().substr(0, kMostOfName);
  return (fs::path(parent_folder(target)) / (std::string(kPrefix) + digits.data() + "-" + name))
      .string();
}

bool is_temporary(std::string_view name) {
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return name.size() > kNumDigits && name[kNumDigits] == '-' &&
         std::all_of(name.begin(), name.begin() + kNumDigits, is_digit);
}

void remove_abandoned(const std::string& folder) {
  FileOperations& files = file_operations();
  std::error_code failure;
  fs::directory_iterator entries(folder, failure);
  for (; !failure && entries != fs::directory_iterator(); entries.increment(failure)) {
    if (!is_temporary(entries->path().filename().string())) continue;
    const std::string path = entries->path().string();
    const int file = files.open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;  // a folder, or it is gone
    if (files.flock(file) == 0) files.unlink(path.c_str());
    files.close(file);
  }
}

TemporaryFile::TemporaryFile(std::string target) : target_(std::move(target)) {
  clean_once(parent_folder(target_));
  // Another program may have taken a file for abandoned before it was locked.
  for (int tries = 0; tries < 10; ++tries)
    if (open()) return;
  fail_on_file(target_, "cannot be written", EBUSY);
}

bool TemporaryFile::open() {
  FileOperations& files = file_operations();
  path_ = temporary_path(target_);
  descriptor_ = files.open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    const int why = errno;
    path_.clear();
    if (why == EEXIST) return false;
    fail_on_file(target_, "cannot be written", why);
  }
  const bool is_taken = files.flock(descriptor_) != 0 && errno == EWOULDBLOCK;
  struct stat status = {};
  if (!is_taken && (fstat(descriptor_, &status) != 0 || status.st_nlink > 0)) return true;
  files.close(std::exchange(descriptor_, -1));
  path_.clear();
  return false;
}

TemporaryFile::~TemporaryFile() {
  FileOperations& files = file_operations();
  if (!path_.empty()) files.unlink(path_.c_str());
  if (descriptor_ >= 0) files.close(descriptor_);
}

void TemporaryFile::write(const void* bytes, size_t count) {
  const int why = write_all(descriptor_, bytes, count);
  if (why != 0) fail_on_file(target_, "cannot be written", why);
}

void TemporaryFile::place() {
  FileOperations& files = file_operations();
  if (files.fsync(descriptor_) != 0) fail_on_file(target_, "cannot be flushed", errno);
  // The lock is held until the name is the final one.
  if (files.rename(path_.c_str(), target_.c_str()) != 0)
    fail_on_file(target_, "cannot be renamed into place", errno);
  path_.clear();
  files.close(std::exchange(descriptor_, -1));
  flush_folder(parent_folder(target_), target_);
}

}  // namespace atelier::files
