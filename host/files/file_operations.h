// The calls to the system that change files, in one place, so that tests can let any of them fail.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <sys/statvfs.h>
#include <sys/types.h>

namespace atelier::files {

// Each is the call of the same name, with its return value and errno. Safe to use from several
// threads.
class FileOperations {
 public:
  virtual ~FileOperations();
  virtual int open(const char* path, int flags, mode_t mode = 0);
  virtual ssize_t write(int file, const void* bytes, size_t count);
  virtual int truncate(int file, off_t size);
  virtual int fsync(int file);
  virtual int close(int file);
  virtual int rename(const char* from, const char* to);
  virtual int unlink(const char* path);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rmdir(const char* path);
  virtual int statvfs(const char* path, struct statvfs* space);
  // Exclusive and without waiting.
  virtual int flock(int file);
};

FileOperations& file_operations();

// Puts `operations` in place of the real ones until destroyed. For tests; one at a time, while
// nothing else writes files.
class ReplacedFileOperations {
 public:
  explicit ReplacedFileOperations(FileOperations& operations);
  ~ReplacedFileOperations();
  ReplacedFileOperations(const ReplacedFileOperations&) = delete;
  ReplacedFileOperations& operator=(const ReplacedFileOperations&) = delete;
};

// Throws Error{kEnvironment}: "PATH: STEP: what the system said"; {kInvalidArgument} where
// report::is_wrong_path.
[[noreturn]] void fail_on_file(const std::string& path, const char* step, int why);

// Writes all of `count` bytes, in as many calls as it takes. Returns 0, or errno.
int write_all(int file, const void* bytes, size_t count);

// Flushes the entries of a folder. Some network file systems cannot, say so, and are believed.
// Throws Error{kEnvironment} that names `about`.
void flush_folder(const std::string& folder, const std::string& about);

// The folder that holds `path`: "." for a bare name.
std::string parent_folder(const std::string& path);

}  // namespace atelier::files
