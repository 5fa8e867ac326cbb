#include "host/plugins/plugin_loader.h"

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include "atelier/plugin.h"

#include "host/plugins/own_process.h"
#include "support/files.h"

using namespace atelier;
using namespace atelier::plugins;
using test::expect_error;
using test::Folder;

namespace {

constexpr const char* kOther = OTHER_ABI;
constexpr const char* kEmpty = EMPTY_PLUGIN;
constexpr const char* kLying = LYING_PLUGIN;
constexpr const char* kOtherFamily = OTHER_FAMILY;
constexpr const char* kOtherSize = OTHER_SIZE;
constexpr const char* kCrashing = CRASHING_PLUGIN;
constexpr const char* kHostile = HOSTILE_PLUGIN;

}  // namespace

TEST_CASE("Listing reads notes and opens nothing", "[plugins]") {
  Folder folder;
  for (const char* file : {kOther, kCrashing, kEmpty})
    test::fs::copy_file(file, folder / test::fs::path(file).filename().string());
  test::write_bytes(folder / "text.so", "no library");
  test::write_bytes(folder / "other.txt", "no plugin");
  const std::vector<PluginFile> found = list_plugins(folder.path() + ":" + (folder / "none"));
  REQUIRE(found.size() >= 4);  // those of the build come after
  CHECK(found[0].family == "fake");
  CHECK(test::fs::path(found[0].path).filename() == "crashing_plugin.so");
  CHECK(found[0].problem.empty());
  CHECK(found[1].problem.empty());
  CHECK_THAT(found[2].problem, Catch::Contains("torch=2.10.0"));
  CHECK_THAT(found[2].problem, Catch::Contains(ATELIER_ABI));
  CHECK(found[3].family.empty());
  CHECK(!found[3].problem.empty());
  CHECK(!describe_plugin(folder / "none.so").problem.empty());
  CHECK(!describe_plugin(folder.path()).problem.empty());
}

TEST_CASE("A plugin of another LibTorch is refused, and both are named", "[plugins]") {
  expect_error(ErrorCode::kIncompatible,
               {"other_abi.so", "torch=2.10.0", ATELIER_ABI, "rebuild", "[PLUGIN_ABI]"},
               [] { open_plugin(kOther, ""); });
}

TEST_CASE("What a plugin's note says and its door does not is refused", "[plugins]") {
  expect_error(ErrorCode::kEnvironment,
               {"lying_plugin.so", "says ABI string \"sdk=9.9", ATELIER_ABI, "[PLUGIN_DAMAGED]"},
               [] { open_plugin(kLying, ""); });
  expect_error(ErrorCode::kEnvironment,
               {"other_family.so", "says family \"other\", its note \"fake\"", "[PLUGIN_DAMAGED]"},
               [] { open_plugin(kOtherFamily, ""); });
  expect_error(ErrorCode::kEnvironment, {"other_size.so", "4294967295 bytes", "[PLUGIN_DAMAGED]"},
               [] { open_plugin(kOtherSize, ""); });
}

TEST_CASE("A plugin that does not open says why", "[plugins]") {
  expect_error(ErrorCode::kEnvironment,
               {"empty_plugin.so", "there is nothing\\nbehind", "[PLUGIN_OPEN]"},
               [] { open_plugin(kEmpty, ""); });
  expect_error(ErrorCode::kEnvironment,
               {"crashing_plugin.so", "Segmentation fault", "[PLUGIN_DAMAGED]"},
               [] { open_plugin(kCrashing, ""); });
  expect_error(ErrorCode::kNotFound, {"/none.so", "[PLUGIN_NOT_FOUND]"},
               [] { open_plugin("/none.so", ""); });
}

TEST_CASE("Work with a plugin in a process of its own gives an answer or an error", "[plugins]") {
  const std::chrono::seconds limit(2);
  const std::string large(300'000, 'x');
  CHECK(in_own_process("p", limit, [&] { return large; }) == large);
  CHECK(in_own_process("p", limit, [] { return std::string(); }).empty());
  const auto fails = [&](ErrorCode code, const std::vector<std::string>& parts,
                         const std::function<void()>& work) {
    expect_error(code, parts, [&] {
      in_own_process("p", limit, [&] {
        work();
        return std::string("answer");
      });
    });
  };
  fails(ErrorCode::kNotFound, {"a: b", "c", "[D]"},
        [] { throw Error(ErrorCode::kNotFound, "a: b", "c", "D"); });
  fails(ErrorCode::kEnvironment, {"p: it throws \"one\"", "[PLUGIN_THROWS]"},
        [] { throw std::runtime_error("one\ntwo"); });
  fails(ErrorCode::kEnvironment, {"p: it throws an exception that is not"}, [] { throw 1; });
  fails(ErrorCode::kEnvironment, {"p: it ends the process with exit()"}, [] { std::exit(0); });
  fails(ErrorCode::kEnvironment, {"exit code 0"}, [] { _exit(0); });
  fails(ErrorCode::kEnvironment, {"(Killed)"}, [] { raise(SIGKILL); });
  fails(ErrorCode::kEnvironment, {"it does not come back within 2 seconds"}, [] { sleep(60); });
}

TEST_CASE("A plugin that harms when it is opened is refused", "[plugins]") {
  for (const auto& [what, says] : {std::pair("constructor exit", "exit()"),
                                   std::pair("constructor throw", "it throws an exception"),
                                   std::pair("open throw", "it throws an exception"),
                                   std::pair("open stack", "Segmentation fault")}) {
    setenv("HOSTILE", what, 1);
    expect_error(ErrorCode::kEnvironment, {"hostile_plugin.so", says},
                 [] { open_plugin(kHostile, ""); });
  }
  unsetenv("HOSTILE");
  CHECK(open_plugin(kHostile, "").family->name() == "fake");
}

TEST_CASE("A family that is not there is named with those that are", "[plugins]") {
  Folder folder;
  test::fs::copy_file(kEmpty, folder / "fake.so");
  expect_error(ErrorCode::kNotFound, {"\"fakee\"", folder.path(), "\"fake\"", "did you mean fake?"},
               [&] { open_plugin("fakee", folder.path()); });
  // By name it is found in the folder that comes first.
  expect_error(ErrorCode::kEnvironment, {folder / "fake.so"},
               [&] { open_plugin("fake", folder.path()); });
  setenv("ATELIER_PLUGIN_PATH", (folder / "b").c_str(), 1);
  const std::vector<std::string> folders = search_folders((folder / "a") + "::" + (folder / "a"));
  unsetenv("ATELIER_PLUGIN_PATH");
  REQUIRE(folders.size() == 3);
  CHECK(folders[0] == folder / "a");
  CHECK(folders[1] == folder / "b");
  CHECK_THAT(folders[2], Catch::EndsWith("lib/atelier/plugins"));
}

TEST_CASE("Damaged plugins end nobody but themselves", "[plugins]") {
  Folder folder;
  const std::string whole = test::read_bytes(kEmpty);
  uint64_t state = 12345;
  const auto random = [&state] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return state >> 33;
  };
  enum Outcome : int { kRefused = 10, kWrongCode = 11, kOpened = 12 };
  int round = 0;
  // Each in a process of its own, as a damaged library that opened cannot be closed again.
  const auto try_bytes = [&](const std::string& bytes) {
    const std::string path = folder / ("damaged" + std::to_string(round++) + ".so");
    test::write_bytes(path, bytes);
    describe_plugin(path);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        open_plugin(path, "");
      } catch (const Error& error) {
        const bool is_known =
            error.code() == ErrorCode::kEnvironment || error.code() == ErrorCode::kIncompatible;
        _exit(is_known ? kRefused : kWrongCode);
      }
      _exit(kOpened);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    INFO("round " << round);
    REQUIRE(WIFEXITED(status));
    // Files that still open say that nothing is behind their door.
    CHECK(WEXITSTATUS(status) == kRefused);
    test::fs::remove(path);
  };
  for (size_t length : {size_t{0}, size_t{4}, size_t{63}, size_t{64}, size_t{2000},
                        whole.size() / 2, whole.size() - 1})
    try_bytes(whole.substr(0, length));
  for (int i = 0; i < 200; ++i) {
    std::string bytes = whole;
    for (int k = 0; k < 3; ++k)
      bytes[random() % std::min<size_t>(bytes.size(), 4096)] = static_cast<char>(random());
    try_bytes(bytes);
  }
}

TEST_CASE("The built families open once and stay", "[plugins]") {
  int opened = 0;
  for (const PluginFile& file : list_plugins(BUILT_PLUGINS)) {
    if (!file.path.starts_with(BUILT_PLUGINS)) continue;
    INFO(file.path << ": " << file.problem);
    REQUIRE(file.problem.empty());
    const Plugin& plugin = open_plugin(file.path, "");
    CHECK(plugin.family->name() == file.family);
    CHECK(open_plugin(file.family, BUILT_PLUGINS).family == plugin.family);
    ++opened;
  }
  CHECK(opened >= 1);
}
