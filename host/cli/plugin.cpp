// atelier plugin: begins a plugin, builds it against this program's SDK, and tests it.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/cli/commands.h"
#include "host/cli/group.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/files/safetensors_writer.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"

namespace atelier::cli {

namespace fs = std::filesystem;

namespace {

flags::CommandSpec new_command() {
  flags::CommandSpec command{"plugin new",
                             "Writes a whole small family into the folder NAME, to change into "
                             "your own."};
  command.positional = "NAME";
  command.min_positional = command.max_positional = 1;
  return command;
}

flags::CommandSpec build_command() {
  flags::CommandSpec command{"plugin build",
                             "Builds the plugin of a folder with CMake, in the folder build in it, "
                             "and prints its file."};
  command.positional = "FOLDER";
  command.min_positional = command.max_positional = 1;
  return command;
}

flags::CommandSpec test_command() {
  flags::CommandSpec command = check_plugin_command();
  command.name = "plugin test";
  command.summary = "Builds the plugin of a folder and runs the conformance suite on it.";
  command.positional = "FOLDER";
  return command;
}

// A name that is a family's, an identifier of C++ and a target of CMake.
void check_name(const std::string& name) {
  const bool is_fit = !name.empty() && std::islower(static_cast<unsigned char>(name[0])) != 0 &&
                      std::ranges::all_of(name, [](unsigned char c) {
                        return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '_';
                      });
  if (!is_fit)
    throw Error(ErrorCode::kInvalidArgument,
                "plugin new " + formats::quote_and_escape(name) +
                    ": a family's name has small letters, digits and _, and begins with a letter",
                "atelier plugin new my_family");
  constexpr std::string_view kTargets[] = {
      "all",     "clean",          "edit_cache", "help",          "install",
      "package", "package_source", "preinstall", "rebuild_cache", "test"};
  if (std::ranges::find(kTargets, name) != std::end(kTargets))
    throw Error(ErrorCode::kInvalidArgument, "plugin new " + name + ": CMake has a target " + name,
                "choose another one");
  for (const plugins::PluginFile& file : plugins::list_plugins("")) {
    if (file.family == name)
      throw Error(ErrorCode::kInvalidArgument,
                  "plugin new " + name + ": " + files::display_path(file.path) +
                      " is a plugin of this name",
                  "choose another one");
  }
}

// "my_family" is "MyFamily".
std::string camel_case(const std::string& name) {
  std::string out;
  bool begins = true;
  for (const char c : name) {
    if (c == '_') {
      begins = true;
      continue;
    }
    out += begins ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    begins = false;
  }
  return out;
}

// Replaces `from` where no letter, digit or `_` touches it in front and, where `is_word`, behind.
std::string renamed(std::string text, const std::string& from, const std::string& to,
                    bool is_word) {
  const auto touches = [&](size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  for (size_t at = text.find(from); at != std::string::npos;) {
    const bool fits = (at == 0 || !touches(at - 1)) && (!is_word || !touches(at + from.size()));
    if (fits) text.replace(at, from.size(), to);
    at = text.find(from, at + (fits ? to.size() : 1));
  }
  return text;
}

int run_new(std::span<const std::string> arguments) {
  const flags::CommandSpec command = new_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const std::string name = flags::parse_flags(command, arguments).positional().front();
  check_name(name);
  const fs::path templates = files::program_prefix() / "share" / "atelier" / "plugin_template";
  if (!files::is_folder(templates))
    throw Error(ErrorCode::kEnvironment,
                files::display_path(templates) + ": the template is not there",
                "install Atelier again");
  const fs::path folder = name;
  std::error_code failure;
  if (!fs::create_directory(folder, failure))
    throw Error(ErrorCode::kInvalidArgument,
                "plugin new " + name + ": the folder " +
                    (failure ? "cannot be made: " + failure.message() : "is there already"),
                "choose another name, or another folder to be in");
  for (const std::string& file : files::names_in(templates)) {
    const std::string text =
        renamed(renamed(files::read_text_file(templates / file, 1'000'000), "toy", name, true),
                "Toy", camel_case(name), false);
    const fs::path written = folder / renamed(file, "toy", name, true);
    files::write_file(written, text);
    std::puts(files::display_path(written).c_str());
  }
  return 0;
}

// Runs a program of the machine to its end, with all that it writes on stderr. Throws
// Error{kEnvironment} where it cannot be started, and Error{kInvalidArgument} where it fails.
void run_tool(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  std::fflush(nullptr);
  pid_t process = -1;
  const int failure =
      posix_spawnp(&process, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0)
    throw Error(ErrorCode::kEnvironment, words[0] + " cannot be started: " + std::strerror(failure),
                "install CMake 3.25 or newer and a C++20 compiler");
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error(ErrorCode::kInvalidArgument, "the plugin does not build", "see above for why",
                "PLUGIN_BUILD");
}

// Whether a file is what a target left that CMakeLists.txt has no more.
bool is_left_over(const fs::path& built, const std::string& name) {
  const std::string target = fs::path(name).stem().string() + ".dir";
  const fs::path all = built / "CMakeFiles" / "TargetDirectories.txt";
  if (!files::is_folder(built / "CMakeFiles" / target) || !files::is_file(all)) return false;
  return (files::read_text_file(all, 10'000'000) + "\n").find("/" + target + "\n") ==
         std::string::npos;
}

// Builds a folder's plugins. Returns their files.
std::vector<std::string> build(const std::string& folder) {
  const std::string shown = files::display_path(folder);
  if (!files::is_file(fs::path(folder) / "CMakeLists.txt"))
    throw Error(ErrorCode::kNotFound, shown + ": there is no CMakeLists.txt",
                "name a plugin's folder, as atelier plugin new writes one");
  const fs::path prefix = files::program_prefix();
  if (!files::is_folder(prefix / "lib" / "cmake" / "AtelierSdk"))
    throw Error(ErrorCode::kEnvironment,
                files::display_path(prefix) + " has no SDK: this program was built, not installed",
                "cmake --install " + formats::quote_and_escape(prefix.string()) +
                    " --prefix FOLDER, then FOLDER/bin/atelier plugin build");
  const std::string built = (fs::path(folder) / "build").string();
  run_tool({"cmake", "-S", folder, "-B", built, "-DCMAKE_PREFIX_PATH=" + prefix.string()});
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1U);
  run_tool({"cmake", "--build", built, "--parallel", std::to_string(cores)});
  std::vector<std::string> found;
  std::string undeclared;  // a library that is no plugin
  for (const std::string& name : files::names_in(built)) {
    const std::string path = (fs::path(built) / name).string();
    if (!name.ends_with(".so") || is_left_over(built, name)) continue;
    if (plugins::describe_plugin(path).family.empty()) {
      undeclared = path;
    } else {
      found.push_back(path);
    }
  }
  if (found.empty() && !undeclared.empty())
    throw Error(ErrorCode::kInvalidArgument,
                files::display_path(undeclared) + ": it is a library, and no plugin",
                plugins::kDeclareHint, "PLUGIN_BUILD");
  if (found.empty())
    throw Error(ErrorCode::kInvalidArgument, shown + ": there is no plugin in its folder build",
                "declare it with atelier_add_plugin() in its CMakeLists.txt", "PLUGIN_BUILD");
  return found;
}

int run_build(std::span<const std::string> arguments) {
  const flags::CommandSpec command = build_command();
  if (flags::wants_help(arguments)) return print_help(command);
  for (const std::string& file : build(flags::parse_flags(command, arguments).positional().front()))
    std::puts(files::display_path(file).c_str());
  return 0;
}

// The words of a command with `file` in the place of the one argument without a flag.
std::vector<std::string> with_file(const flags::CommandSpec& command,
                                   std::span<const std::string> arguments,
                                   const std::string& argument, const std::string& file) {
  std::vector<std::string> words(arguments.begin(), arguments.end());
  for (size_t i = 0; i < words.size(); ++i) {
    const flags::FlagSpec* flag = i > 0 && words[i - 1].starts_with("--")
                                      ? find_flag(command, words[i - 1].substr(2))
                                      : nullptr;
    const bool is_value = flag != nullptr && flag->kind != flags::FlagKind::kFlag;
    if (words[i] != argument || is_value) continue;
    words[i] = file;
    break;
  }
  return words;
}

int run_test(std::span<const std::string> arguments) {
  const flags::CommandSpec command = test_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const std::string folder = flags::parse_flags(command, arguments).positional().front();
  int code = 0;
  for (const std::string& file : build(folder))
    code = std::max(code, run_check_plugin(with_file(command, arguments, folder, file)));
  return code;
}

constexpr Command kPluginCommands[] = {
    {"new", "write a small family to begin with", run_new, false},
    {"build", "compile a plugin against this program's SDK", run_build, false},
    {"test", "build a plugin and run the conformance suite on it", run_test, false},
};

}  // namespace

std::vector<flags::CommandSpec> plugin_commands() {
  return {new_command(), build_command(), test_command()};
}

int run_plugin(std::span<const std::string> arguments) {
  return run_group("plugin", "Makes plugins.", kPluginCommands,
                   "atelier plugin new my_family begins one, atelier plugins lists those there are",
                   arguments);
}

}  // namespace atelier::cli
