// Folders that are made, renamed and removed so that it holds after a crash.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace atelier::run {

// All throw Error{kEnvironment} naming the path and what the system said.

// Makes a folder and those above it, and flushes the entry of each new one.
void make_folders(const std::string& path);

// Renames a folder without flushing.
void rename_folder(const std::string& from, const std::string& to);

// Removes a folder with all that it holds; links are not followed.
void remove_tree(const std::string& path);

std::string path_in(const std::string& folder, std::string_view name);

// The names in a folder, sorted; none when it is no folder.
std::vector<std::string> folder_names(const std::string& path);

}  // namespace atelier::run
