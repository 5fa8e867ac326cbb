// Files that are written aside, and what a kill left of them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace atelier::files {

// Where `target`, a file or a folder, is written until it is whole: beside it, under the one kind
// of name that everything unfinished has, ".atelier-tmp-1f0c93ab-out.png". Another one at each
// call.
std::string temporary_path(const std::string& target);

// Whether a file or folder of this name, without its folder, is such a one.
bool is_temporary(std::string_view name);

// Removes the unfinished files in `folder`, but not in folders below it, whose programs are gone. A
// program that lives holds a lock on each of its own. Where the file system has no locks all stay.
void remove_abandoned(const std::string& folder);

// An unfinished file of ours; gone unless it was put into its place. The first one that a program
// makes in a folder also removes what others abandoned there. Not thread-safe.
class TemporaryFile {
 public:
  // Throws Error{kEnvironment} naming `target`.
  explicit TemporaryFile(std::string target);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  // For what writes the file by itself, in place of write().
  const std::string& path() const { return path_; }

  // Both throw Error{kEnvironment} naming the target.
  void write(const void* bytes, size_t count);
  // Flushes the file, gives it its name, and flushes the folder.
  void place();

 private:
  bool open();

  std::string target_, path_;  // path_ is empty once it is placed
  int descriptor_ = -1;        // holds the lock
};

}  // namespace atelier::files
