#include "host/files/folder.h"

#include <algorithm>
#include <string_view>
#include <sys/stat.h>

#include "formats/glob.h"

namespace atelier::files {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code failure;
  return fs::is_regular_file(path, failure);
}

bool is_folder(const fs::path& path) {
  std::error_code failure;
  return fs::is_directory(path, failure);
}

fs::path program_prefix() {
  std::error_code failure;
  return fs::read_symlink("/proc/self/exe", failure).parent_path().parent_path();
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

std::vector<std::string> expand_glob(const std::string& folder, const std::string& pattern) {
  std::vector<fs::path> bases = {folder};
  std::error_code failure;
  std::string_view rest = pattern;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/'), rest.size());
    const std::string part(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (part.empty() || part == ".") continue;
    std::vector<fs::path> next;
    for (const fs::path& base : bases) {
      if (!formats::has_glob(part)) {
        if (fs::exists(base / part, failure)) next.push_back(base / part);
        continue;
      }
      for (const std::string& name : names_in(base.empty() ? fs::path(".") : base)) {
        if (name.starts_with(".") && !part.starts_with(".")) continue;
        if (formats::glob_match(part, name) && (rest.empty() || is_folder(base / name)))
          next.push_back(base / name);
      }
    }
    bases = std::move(next);
  }
  std::vector<std::string> paths;
  for (const fs::path& path : bases) paths.push_back(path.string());
  std::sort(paths.begin(), paths.end());
  return paths;
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
