// Finds plugins, says what they are without opening them, and opens one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/error.h"
#include "atelier/model_family.h"

namespace atelier::plugins {

// A file that looks like a plugin, as its ELF note describes it.
struct PluginFile {
  std::string path;
  std::string family;   // empty when the note cannot be read
  std::string version;  // of the plugin
  std::string abi;      // ATELIER_ABI of its build
  std::string problem;  // why it cannot be opened; empty when it can
};

// What the author of a library that is no plugin is told.
inline constexpr const char* kDeclareHint =
    "one of a plugin's sources ends with ATELIER_PLUGIN(MyFamily, \"my_family\", \"0.1.0\")";

// The folders that are searched, in order: `plugin_path` (folders separated by colons, may be
// empty), ATELIER_PLUGIN_PATH, and lib/atelier/plugins beside the program's folder.
std::vector<std::string> search_folders(const std::string& plugin_path);

// Every *.so of the search folders, by folder and name. Reads ELF notes and opens nothing.
std::vector<PluginFile> list_plugins(const std::string& plugin_path);

// Reads the note of one file. Never throws; what is wrong stands in `problem`.
PluginFile describe_plugin(const std::string& path);

// An opened plugin. It is never closed, so that what it gave stays valid as long as the process.
// `family` is guarded: see guarded_family.h.
struct Plugin {
  PluginFile file;
  const ModelFamily* family = nullptr;
};

// Opens a plugin by family name, or by path when `name_or_path` holds a slash or ends in ".so". The
// same file is opened once. Throws Error{kNotFound} naming the folders searched and the families
// found, Error{kIncompatible} with both ABI strings when it was built for another SDK or LibTorch,
// and Error{kEnvironment} when the file is damaged, or when being opened in a process of its own it
// ends that, throws, or takes more than 10 seconds.
const Plugin& open_plugin(std::string_view name_or_path, const std::string& plugin_path);

// Opens the first plugin of each family in the search folders that can be opened. `on_error` is
// told of those that cannot, for a reason that their notes do not say.
std::vector<const Plugin*> open_plugins(const std::string& plugin_path,
                                        const std::function<void(const Error&)>& on_error = {});

// The file of the family's plugin; empty: none of that name was opened.
std::string opened_file(std::string_view family);

}  // namespace atelier::plugins
