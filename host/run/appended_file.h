// A file that grows while a run goes on, and may fail without ending it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace atelier::run {

// Not thread-safe.
class AppendedFile {
 public:
  // Opens or makes it. With `is_new` a file that is there is an error.
  // Throws Error{kEnvironment} naming the file.
  AppendedFile(std::string path, bool is_new);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  // Hands `bytes` to the system, all or none: what a full disk took is cut off again. The first
  // failure is told on stderr.
  void append(std::string_view bytes);

 private:
  std::string path_;
  int file_ = -1;
  int64_t size_ = 0;
  bool has_warned_ = false;
};

}  // namespace atelier::run
