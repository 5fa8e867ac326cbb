#include "host/plugins/plugin_loader.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <limits.h>
#include <mutex>
#include <signal.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#define BOOST_DLL_USE_STD_FS 1
#include <boost/dll/shared_library.hpp>

#include "atelier/plugin.h"

#include "formats/elf_note.h"
#include "formats/escape.h"
#include "host/plugins/guard.h"
#include "host/report/problems.h"

namespace atelier::plugins {

namespace fs = std::filesystem;

namespace {

constexpr auto kTrialSeconds = std::chrono::seconds(60);
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

std::string program_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return length <= 0
             ? std::string(".")
             : fs::path(std::string(path, static_cast<size_t>(length))).parent_path().string();
}

std::string abi_problem(const std::string& abi) {
  return "it was built for \"" + abi + "\", this program for \"" ATELIER_ABI "\"";
}

// What a child process told by its exit code about opening a plugin.
enum Trial : int { kOpens = 0, kNoLibrary = 101, kNoEntry = 102, kNoStruct = 103 };

// dlopen trusts the file: a damaged one ends the process. So it is opened in a child first.
// Returns an empty string when it opens there.
std::string try_in_child(const std::string& path) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return std::string("pipe: ") + std::strerror(errno);
  const pid_t child = fork();
  if (child < 0) {
    const std::string why = std::string("fork: ") + std::strerror(errno);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    return why;
  }
  if (child == 0) {
    for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGINT, SIGTERM})
      signal(number, SIG_DFL);
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    close(pipe_ends[0]);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = dlerror();
      if (why != nullptr && write(pipe_ends[1], why, std::strlen(why)) < 0) _exit(kNoLibrary);
      _exit(kNoLibrary);
    }
    auto entry = reinterpret_cast<AtelierPluginEntry>(dlsym(library, "atelier_plugin"));
    if (entry == nullptr) _exit(kNoEntry);
    const AtelierPlugin* plugin = entry();
    if (plugin == nullptr || plugin->magic != ATELIER_PLUGIN_MAGIC) _exit(kNoStruct);
    // Whatever this process does next with it: a pointer may be wrong too.
    if (std::strcmp(plugin->abi, ATELIER_ABI) == 0) {
      char message[512] = "";
      auto* family = static_cast<const ModelFamily*>(plugin->open(message, sizeof(message)));
      if (family != nullptr && family->name().empty()) _exit(kNoStruct);
    }
    _exit(kOpens);
  }
  close(pipe_ends[1]);
  std::string said;
  int status = 0;
  bool ended = false;
  const auto deadline = std::chrono::steady_clock::now() + kTrialSeconds;
  for (auto pause = std::chrono::microseconds(200);
       !ended && std::chrono::steady_clock::now() < deadline;) {
    ended = waitpid(child, &status, WNOHANG) == child;
    if (!ended) std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20000));
  }
  if (!ended) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    close(pipe_ends[0]);
    return "it does not come back from being opened";
  }
  char buffer[1024];
  const ssize_t got = read(pipe_ends[0], buffer, sizeof(buffer));
  if (got > 0) said.assign(buffer, static_cast<size_t>(got));
  close(pipe_ends[0]);
  if (WIFSIGNALED(status))
    return std::string("opening it ends the process (") + strsignal(WTERMSIG(status)) +
           "): the file is damaged";
  switch (WEXITSTATUS(status)) {
    case kOpens:
      return {};
    case kNoLibrary:
      return said.empty() ? "it cannot be opened" : "it cannot be opened: " + said;
    case kNoEntry:
      return "it has no function atelier_plugin";
    case kNoStruct:
      return "its atelier_plugin() gives no plugin";
    default:
      return "opening it ends the process with exit code " + std::to_string(WEXITSTATUS(status));
  }
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
      file.problem = "it is a library, and no plugin";
      return file;
    }
    file.abi = note->abi;
    file.family = note->family;
    file.version = note->version;
    if (file.abi != ATELIER_ABI) file.problem = abi_problem(file.abi);
  } catch (const formats::ParseError& error) {
    file.problem = error.what();
  }
  return file;
}

Plugin open_file(const PluginFile& file) {
  const std::string place = formats::quote_and_escape(file.path, 200);
  if (!file.problem.empty()) {
    if (!file.abi.empty() && file.abi != ATELIER_ABI)
      throw Error(ErrorCode::kIncompatible, place + ": " + file.problem, kRebuild, "PLUGIN_ABI");
    std::error_code failure;
    if (!fs::exists(file.path, failure))
      throw Error(ErrorCode::kNotFound, place + ": there is no such plugin",
                  "check the path given to --plugin", "PLUGIN_NOT_FOUND");
    throw Error(ErrorCode::kEnvironment, place + ": " + file.problem,
                "it is no plugin, or damaged: build or copy it again", "PLUGIN_DAMAGED");
  }
  if (const std::string problem = try_in_child(file.path); !problem.empty())
    throw Error(ErrorCode::kEnvironment, place + ": " + problem, "build or copy it again",
                "PLUGIN_DAMAGED");

  std::error_code failure;
  // Never closed: graphs and statics point into it. The caller holds the lock.
  static auto& libraries = *new std::deque<boost::dll::shared_library>;
  boost::dll::shared_library* library = &libraries.emplace_back();
  library->load(file.path, failure,
                boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  if (failure) {
    const char* why = dlerror();
    throw Error(ErrorCode::kEnvironment, place + ": " + (why != nullptr ? why : failure.message()),
                "build or copy it again", "PLUGIN_DAMAGED");
  }
  if (!library->has("atelier_plugin"))
    throw Error(ErrorCode::kEnvironment, place + ": it has no function atelier_plugin",
                "it is no plugin", "PLUGIN_DAMAGED");
  const auto entry = library->get<const AtelierPlugin*() noexcept>("atelier_plugin");
  const AtelierPlugin* plugin = entry();
  if (plugin == nullptr || plugin->magic != ATELIER_PLUGIN_MAGIC ||
      plugin->struct_size < sizeof(AtelierPlugin) || plugin->abi == nullptr ||
      plugin->open == nullptr)
    throw Error(ErrorCode::kEnvironment, place + ": its atelier_plugin() gives no plugin", kRebuild,
                "PLUGIN_DAMAGED");
  // The note was right, but the note is not the code.
  if (std::strcmp(plugin->abi, ATELIER_ABI) != 0)
    throw Error(ErrorCode::kIncompatible, place + ": " + abi_problem(plugin->abi), kRebuild,
                "PLUGIN_ABI");

  char message[512] = "";
  void* family = plugin->open(message, sizeof(message));
  if (family == nullptr)
    throw Error(ErrorCode::kEnvironment,
                place + ": its open() fails: " + formats::quote_and_escape(message),
                "ask its author", "PLUGIN_OPEN");
  return Plugin{file, static_cast<const ModelFamily*>(family)};
}

}  // namespace

std::vector<std::string> search_folders(const std::string& plugin_path) {
  std::vector<std::string> folders = split_folders(plugin_path);
  if (const char* variable = std::getenv("ATELIER_PLUGIN_PATH"); variable != nullptr) {
    for (std::string& folder : split_folders(variable)) folders.push_back(std::move(folder));
  }
  folders.push_back(
      (fs::path(program_folder()).parent_path() / "lib" / "atelier" / "plugins").string());
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
  // Plugins stay open as long as the process; so do these entries.
  static std::mutex& mutex = *new std::mutex;
  static auto& opened = *new std::map<std::string, Plugin>;

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
                  "--plugin " + formats::quote_and_escape(name_or_path) + ": no such family in " +
                      folders +
                      (names.empty() ? "" : ", which have " + report::list_names(names, 8)),
                  nearest.empty() ? "pass a family's name or the path of a .so"
                                  : "did you mean " + nearest + "?",
                  "PLUGIN_NOT_FOUND");
    }
    wanted = *match;
    std::error_code failure;
    const fs::path real = fs::canonical(wanted.path, failure);
    if (!failure) wanted.path = real.string();
  }

  const std::lock_guard lock(mutex);
  auto it = opened.find(wanted.path);
  if (it == opened.end()) it = opened.emplace(wanted.path, open_file(wanted)).first;
  return it->second;
}

}  // namespace atelier::plugins
