#include "host/samples/source_files.h"

#include <algorithm>
#include <filesystem>

#include "host/data/parallel.h"
#include "host/files/content_hash.h"
#include "host/files/folder.h"

namespace atelier::samples {

std::optional<SourceFile> stat_file(const std::string& path) {
  const std::optional<files::FileStamp> stamp = files::stamp_of(path);
  if (!stamp) return std::nullopt;
  return SourceFile{static_cast<uint64_t>(stamp->bytes), stamp->modified_ns, {}};
}

std::string absolute_path(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

SourceFiles hash_files(const std::vector<std::string>& paths, const SourceFiles& known) {
  SourceFiles files;
  for (const std::string& path : paths) files.try_emplace(absolute_path(path));
  std::vector<SourceFiles::value_type*> rows;
  for (auto& row : files) rows.push_back(&row);
  data::for_each_in_parallel(rows.size(), [&](size_t i) {
    auto& [path, file] = *rows[i];
    file = stat_file(path).value_or(SourceFile());
    const auto found = known.find(path);
    const bool is_known = found != known.end() && found->second.size == file.size &&
                          found->second.mtime_ns == file.mtime_ns;
    file.hash = is_known ? found->second.hash : files::hash_file(path);
  });
  return files;
}

std::vector<std::string> changed_files(const SourceFiles& recorded) {
  std::vector<const SourceFiles::value_type*> rows;
  for (const auto& row : recorded) rows.push_back(&row);
  std::vector<char> has_changed(rows.size(), 0);
  data::for_each_in_parallel(rows.size(), [&](size_t i) {
    const auto& [path, file] = *rows[i];
    const std::optional<SourceFile> now = stat_file(path);
    if (!now || (now->size == file.size && now->mtime_ns == file.mtime_ns)) return;
    has_changed[i] = now->size != file.size || files::hash_file(path) != file.hash;
  });
  std::vector<std::string> changed;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (has_changed[i]) changed.push_back(rows[i]->first);
  }
  return changed;
}

}  // namespace atelier::samples
