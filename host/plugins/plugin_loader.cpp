#include "host/plugins/plugin_loader.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

#define BOOST_DLL_USE_STD_FS 1
#include <boost/dll/shared_library.hpp>

#include "atelier/plugin.h"

#include "formats/elf_note.h"
#include "formats/escape.h"
#include "host/files/folder.h"
#include "host/plugins/abi.h"
#include "host/plugins/guarded_family.h"
#include "host/plugins/own_process.h"
#include "host/plugins/plugin_call.h"
#include "host/report/problems.h"

namespace atelier::plugins {

namespace fs = std::filesystem;

namespace {

constexpr auto kTrialTime = std::chrono::seconds(10);
constexpr const char* kNoPlugin = "it is a library, and no plugin";
constexpr const char* kRebuild = "rebuild the plugin against this program's SDK";

std::vector<std::string> split_folders(std::string_view text) {
  std::vector<std::string> folders;
  while (!text.empty()) {
    const size_t end = std::min(text.find(':'), text.size());
    if (end > 0) folders.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return folders;
}

std::string shown(std::string_view text) {
  return formats::quote_and_escape(text, 200);
}

// Plugins stay open as long as the process; so do these entries.
struct Opened {
  std::mutex mutex;
  std::map<std::string, Plugin> plugins;  // by path
};
Opened& opened() {
  static auto& all = *new Opened;
  return all;
}

PluginFile describe(const std::string& path) {
  PluginFile file;
  file.path = path;
  std::error_code failure;
  if (!fs::is_regular_file(path, failure)) {
    file.problem = fs::exists(path, failure) ? "it is no file" : "there is no such file";
    return file;
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  if (!stream) {
    file.problem = std::string("it cannot be read: ") + std::strerror(errno);
    return file;
  }
  try {
    const auto note = formats::read_plugin_note(bytes.view());
    if (!note) {
      file.problem = kNoPlugin;
      return file;
    }
    file.abi = note->abi;
    file.family = note->family;
    file.version = note->version;
    file.problem = why_refused(file.abi, ATELIER_ABI);
  } catch (const formats::ParseError& error) {
    file.problem = error.what();
  }
  return file;
}

void expect_as_noted(const std::string& place, const char* what, const char* said,
                     const std::string& noted) {
  if (said != nullptr && said == noted) return;
  throw Error(ErrorCode::kEnvironment,
              place + ": its atelier_plugin() says " + what + " " +
                  shown(said == nullptr ? "" : said) + ", its note " + shown(noted),
              kRebuild, "PLUGIN_DAMAGED");
}

// Opens the library and makes the family, whatever they do.
Plugin open_library(const PluginFile& file, const std::string& place) {
  std::error_code failure;
  // Never closed: graphs and statics point into it. The caller holds the lock.
  static auto& libraries = *new std::deque<boost::dll::shared_library>;
  boost::dll::shared_library* library = &libraries.emplace_back();
  library->load(file.path, failure,
                boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  if (failure) {
    const char* why = dlerror();
    throw Error(ErrorCode::kEnvironment,
                place + ": it cannot be opened: " + (why != nullptr ? why : failure.message()),
                "build or copy it again", "PLUGIN_DAMAGED");
  }
  if (!library->has("atelier_plugin"))
    throw Error(ErrorCode::kEnvironment, place + ": it has no function atelier_plugin",
                "it is no plugin", "PLUGIN_DAMAGED");
  const auto entry = library->get<const AtelierPlugin*() noexcept>("atelier_plugin");
  const AtelierPlugin* plugin = entry();
  if (plugin == nullptr || plugin->magic != ATELIER_PLUGIN_MAGIC || plugin->abi == nullptr ||
      plugin->open == nullptr)
    throw Error(ErrorCode::kEnvironment, place + ": its atelier_plugin() gives no plugin", kRebuild,
                "PLUGIN_DAMAGED");
  // The note was right, but the note is not the code.
  expect_as_noted(place, "ABI string", plugin->abi, file.abi);
  if (plugin->struct_size != sizeof(AtelierPlugin))
    throw Error(ErrorCode::kEnvironment,
                place + ": its atelier_plugin() gives " + std::to_string(plugin->struct_size) +
                    " bytes, " + std::to_string(sizeof(AtelierPlugin)) + " expected",
                kRebuild, "PLUGIN_DAMAGED");
  expect_as_noted(place, "family", plugin->family, file.family);
  expect_as_noted(place, "version", plugin->version, file.version);
  remember_code(reinterpret_cast<const void*>(entry), lasting({file.family, place}));

  char message[512] = "";
  void* family = plugin->open(message, sizeof(message));
  if (family == nullptr)
    throw Error(ErrorCode::kEnvironment, place + ": its open() fails: " + shown(message),
                "ask its author", "PLUGIN_OPEN");
  static auto& families = *new std::deque<std::unique_ptr<const ModelFamily>>;
  families.push_back(guarded(*static_cast<const ModelFamily*>(family), place, file.version));
  return Plugin{file, families.back().get()};
}

Plugin open_file(const PluginFile& file) {
  const std::string place = shown(file.path);
  if (!file.problem.empty()) {
    if (!file.abi.empty())
      throw Error(ErrorCode::kIncompatible, place + ": " + file.problem, kRebuild, "PLUGIN_ABI");
    std::error_code failure;
    if (!fs::exists(file.path, failure))
      throw Error(ErrorCode::kNotFound, place + ": there is no such plugin",
                  "check the path given to --plugin", "PLUGIN_NOT_FOUND");
    throw Error(ErrorCode::kEnvironment, place + ": " + file.problem,
                file.problem == kNoPlugin ? kDeclareHint
                                          : "it is no plugin, or damaged: build or copy it again",
                "PLUGIN_DAMAGED");
  }
  // dlopen trusts the file, and a damaged one ends the process: it is tried in another one first.
  in_own_process(place, kTrialTime, [&] {
    const Plugin tried = open_library(file, place);
    // A pointer may be wrong, too.
    if (tried.family->name().empty())
      throw Error(ErrorCode::kEnvironment, place + ": its family has no name", kRebuild,
                  "PLUGIN_DAMAGED");
    return std::string();
  });
  if (!is_watched()) watch_calls();  // who started this process watches it otherwise
  const PluginCall call(lasting({file.family, place}), "open", CallKind::kAnswers);
  const EndWatch watch(place);
  try {
    return open_library(file, place);
  } catch (...) {
    rethrow_of_plugin(place);
  }
}

}  // namespace

std::vector<std::string> search_folders(const std::string& plugin_path) {
  std::vector<std::string> folders = split_folders(plugin_path);
  if (const char* variable = std::getenv("ATELIER_PLUGIN_PATH"); variable != nullptr) {
    for (std::string& folder : split_folders(variable)) folders.push_back(std::move(folder));
  }
  folders.push_back((files::program_prefix() / "lib" / "atelier" / "plugins").string());
  std::vector<std::string> unique;
  for (std::string& folder : folders) {
    if (std::find(unique.begin(), unique.end(), folder) == unique.end())
      unique.push_back(std::move(folder));
  }
  return unique;
}

PluginFile describe_plugin(const std::string& path) {
  return describe(path);
}

std::vector<PluginFile> list_plugins(const std::string& plugin_path) {
  std::vector<PluginFile> found;
  for (const std::string& folder : search_folders(plugin_path)) {
    std::vector<std::string> paths;
    std::error_code failure;
    for (fs::directory_iterator it(folder, failure), end; !failure && it != end;
         it.increment(failure)) {
      if (it->path().extension() == ".so") paths.push_back(it->path().string());
    }
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths) found.push_back(describe(path));
  }
  return found;
}

const Plugin& open_plugin(std::string_view name_or_path, const std::string& plugin_path) {
  PluginFile wanted;
  if (name_or_path.find('/') != std::string_view::npos || name_or_path.ends_with(".so")) {
    std::error_code failure;
    const fs::path real = fs::weakly_canonical(fs::path(name_or_path), failure);
    wanted = describe(failure ? std::string(name_or_path) : real.string());
  } else {
    const std::vector<PluginFile> all = list_plugins(plugin_path);
    const auto match = std::find_if(all.begin(), all.end(), [&](const PluginFile& f) {
      return f.family.empty() ? fs::path(f.path).stem() == name_or_path : f.family == name_or_path;
    });
    if (match == all.end()) {
      std::vector<std::string> names;
      for (const PluginFile& file : all) {
        if (!file.family.empty() &&
            std::find(names.begin(), names.end(), file.family) == names.end())
          names.push_back(file.family);
      }
      const std::string nearest = report::nearest_name(name_or_path, names);
      std::string folders;
      for (const std::string& folder : search_folders(plugin_path))
        folders += (folders.empty() ? "" : ":") + folder;
      throw Error(ErrorCode::kNotFound,
                  "--plugin " + shown(name_or_path) + ": no such family in " + folders +
                      (names.empty() ? "" : ", which have " + report::list_names(names, 8)),
                  nearest.empty()
                      ? "pass a family's name and its folder with --plugin_path, or the "
                        "path of a .so"
                      : "did you mean " + nearest + "?",
                  "PLUGIN_NOT_FOUND");
    }
    wanted = *match;
    std::error_code failure;
    const fs::path real = fs::canonical(wanted.path, failure);
    if (!failure) wanted.path = real.string();
  }

  const std::lock_guard lock(opened().mutex);
  std::map<std::string, Plugin>& plugins = opened().plugins;
  auto it = plugins.find(wanted.path);
  if (it == plugins.end()) it = plugins.emplace(wanted.path, open_file(wanted)).first;
  return it->second;
}

std::vector<const Plugin*> open_plugins(const std::string& plugin_path,
                                        const std::function<void(const Error&)>& on_error) {
  std::vector<const Plugin*> families;
  for (const PluginFile& file : list_plugins(plugin_path)) {
    const bool is_known = std::ranges::any_of(
        families, [&](const Plugin* known) { return known->file.family == file.family; });
    if (!file.problem.empty() || is_known) continue;
    try {
      families.push_back(&open_plugin(file.path, plugin_path));
    } catch (const Error& error) {
      if (on_error) on_error(error);
    }
  }
  return families;
}

std::string opened_file(std::string_view family) {
  const std::lock_guard lock(opened().mutex);
  for (const auto& [path, plugin] : opened().plugins) {
    if (plugin.file.family == family) return path;
  }
  return "";
}

}  // namespace atelier::plugins
