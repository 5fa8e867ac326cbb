// What is in a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace atelier::files {

// Whether there is a regular file, and it can be seen.
bool is_file(const std::filesystem::path& path);

// Whether there is a folder, and it can be seen.
bool is_folder(const std::filesystem::path& path);

// The names in a folder, sorted; none where there is no such folder, or it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);

// Paths below `folder` that match, sorted. `*` and `?` do not cross a slash; hidden files match
// only a literal dot.
std::vector<std::string> expand_glob(const std::string& folder, const std::string& pattern);

// The folder with bin/, in which this program is, lib/ and share/. An installed tree and the tree
// of a build are alike.
std::filesystem::path program_prefix();

// What shows that a file was changed, without reading it.
struct FileStamp {
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970
};

// What a folder has: the bytes of all files directly in it, and the latest time of any of them and
// of itself. nullopt when there is neither file nor folder.
std::optional<FileStamp> stamp_of(const std::string& path);

}  // namespace atelier::files
