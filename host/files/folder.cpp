#include "host/files/folder.h"

#include <algorithm>
#include <sys/stat.h>

namespace atelier::files {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code failure;
  return fs::is_regular_file(path, failure);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  for (fs::directory_iterator it(folder, failure), end; !failure && it != end;
       it.increment(failure))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<FileStamp> stamp_of(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  FileStamp stamp = {
      .bytes = status.st_size,
      .modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
  if (!S_ISDIR(status.st_mode)) return stamp;
  stamp.bytes = 0;
  for (const std::string& name : names_in(path)) {
    const std::string file = (fs::path(path) / name).string();
    if (!is_file(file)) continue;
    const FileStamp of_file = stamp_of(file).value_or(FileStamp());
    stamp.bytes += of_file.bytes;
    stamp.modified_ns = std::max(stamp.modified_ns, of_file.modified_ns);
  }
  return stamp;
}

}  // namespace atelier::files
