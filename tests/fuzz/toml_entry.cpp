// The readers of settings in TOML: those of --config, and those of other trainers' datasets.
#include <algorithm>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "atelier/error.h"

#include "formats/utf8.h"
#include "fuzz/entries.h"
#include "fuzz/promise.h"
#include "host/flags/flags.h"
#include "host/foreign/kohya_dataset.h"
#include "host/order/config_file.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"

namespace atelier::formats {

namespace {

// A flag of each kind.
flags::CommandSpec command_of_all_kinds() {
  using flags::FlagKind;
  flags::CommandSpec command;
  command.name = "train";
  const std::pair<const char*, FlagKind> kinds[] = {
      {"text", FlagKind::kText}, {"many", FlagKind::kText},        {"count", FlagKind::kInteger},
      {"seed", FlagKind::kSeed}, {"rate", FlagKind::kReal},        {"on", FlagKind::kFlag},
      {"list", FlagKind::kList}, {"model_paths", FlagKind::kText}, {"json", FlagKind::kJson}};
  for (const auto& [name, kind] : kinds) {
    flags::FlagSpec& flag = command.flags.emplace_back();
    flag.name = name;
    flag.kind = kind;
    flag.repeated = flag.name == "many";
  }
  return command;
}

void check_error(const Error& error) {
  const std::string line = report::error_line(error);
  promise(find_invalid_utf8(line) == std::string_view::npos, "a message is UTF-8");
  const auto steers = [](unsigned char c) {  // a terminal
    return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F;
  };
  promise(std::ranges::none_of(line, steers), "a message holds no control character");
}

// What is wrong, where something is.
void check_problems(const report::Problems& problems) {
  try {
    problems.throw_if_any();
  } catch (const Error& error) {
    check_error(error);
  }
}

void read_config(const std::string& text) {
  static const flags::CommandSpec command = command_of_all_kinds();
  report::Problems problems;
  try {
    for (const flags::GivenValue& value :
         order::parse_config_text(text, "a.toml", command, problems)) {
      promise(flags::find_flag(command, value.name) != nullptr, "a value is that of a flag");
      promise(value.place.starts_with("a.toml:"), "a value has its line");
      promise(find_invalid_utf8(value.text) == std::string_view::npos, "a value is UTF-8");
    }
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::kInvalidArgument, "what is no TOML is the user's mistake");
    check_error(error);
  }
  check_problems(problems);
}

// The reader takes a path: that of a file in memory.
void read_dataset(std::string_view bytes) {
  static const int file = memfd_create("dataset.toml", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  const bool is_written =
      file >= 0 && ftruncate(file, 0) == 0 &&
      pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
  promise(is_written, "a file in memory can be written");
  report::Problems problems;
  for (const auto& [flag, value] : foreign::read_kohya_dataset(path, problems)) {
    promise(!flag.empty(), "a value is that of a flag");
    promise(find_invalid_utf8(value) == std::string_view::npos, "a value is UTF-8");
  }
  check_problems(problems);
}

}  // namespace

void fuzz_toml(std::string_view bytes) {
  read_config(std::string(bytes));
  read_dataset(bytes);
}

}  // namespace atelier::formats
