// What is in a folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace atelier::files {

// Whether there is a regular file, and it can be seen.
bool is_file(const std::filesystem::path& path);

// The names in a folder, sorted; none where there is no such folder, or it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);

}  // namespace atelier::files
