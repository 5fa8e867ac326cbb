#include "host/run/durable.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "host/files/file_operations.h"

namespace atelier::run {

namespace fs = std::filesystem;

using files::fail_on_file;
using files::file_operations;

void make_folders(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return;
  const std::string parent = files::parent_folder(path);
  if (parent != path) make_folders(parent);
  if (file_operations().mkdir(path.c_str(), 0777) != 0) {
    const int why = errno;
    if (why == EEXIST && fs::is_directory(path, ignored)) return;
    fail_on_file(path, "the folder cannot be made", why);
  }
  files::flush_folder(parent, path);
}

void rename_folder(const std::string& from, const std::string& to) {
  if (file_operations().rename(from.c_str(), to.c_str()) != 0)
    fail_on_file(from, "cannot be renamed", errno);
}

void remove_tree(const std::string& path) {
  std::error_code ignored;
  for (const std::string& name : folder_names(path)) {
    const std::string entry = path_in(path, name);
    if (fs::is_directory(fs::symlink_status(entry, ignored))) {
      remove_tree(entry);
    } else if (file_operations().unlink(entry.c_str()) != 0 && errno != ENOENT) {
      fail_on_file(entry, "cannot be removed", errno);
    }
  }
  if (file_operations().rmdir(path.c_str()) != 0 && errno != ENOENT)
    fail_on_file(path, "cannot be removed", errno);
}

std::string path_in(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

std::vector<std::string> folder_names(const std::string& path) {
  std::error_code failure;
  fs::directory_iterator entries(path, failure);
  if (failure == std::errc::no_such_file_or_directory || failure == std::errc::not_a_directory)
    return {};
  std::vector<std::string> names;
  for (; !failure && entries != fs::directory_iterator(); entries.increment(failure))
    names.push_back(entries->path().filename().string());
  if (failure) fail_on_file(path, "the folder cannot be read", failure.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace atelier::run
