// A command line of another trainer, pasted behind "atelier": answered with the one to run instead,
// or, behind "atelier launch", run as that one.
#include "host/foreign/compat_line.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "host/cli/commands.h"
#include "host/order/generation.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"

namespace atelier::cli {

namespace {

foreign::CompatLine read_line(std::span<const std::string> words, report::Problems& problems) {
  const std::string plugin_path = flags::peek_flag(words, "plugin_path").value_or("");
  std::vector<std::string> families;
  for (const plugins::PluginFile& file : plugins::list_plugins(plugin_path)) {
    if (file.problem.empty()) families.push_back(file.family);
  }
  const ModelFamily* family = nullptr;
  if (const std::string name = foreign::family_of_line(words, families); !name.empty())
    problems.collect([&] { family = plugins::open_plugin(name, plugin_path).family; });
  foreign::CompatLine line =
      foreign::rewrite_line(words, family, order::generate_command(family), problems);
  for (const std::string& note : line.notes)
    std::fprintf(stderr, "note: %s\n", report::printable(note).c_str());
  return line;
}

}  // namespace

int run_compat_line(std::span<const std::string> words) {
  report::Problems problems;
  const foreign::CompatLine line = read_line(words, problems);
  std::puts(foreign::shell_text(line.command).c_str());
  std::fflush(stdout);
  problems.throw_if_any();
  return 0;
}

int launch_compat_line(std::span<const std::string> words) {
  report::Problems problems;
  const std::vector<std::string> command = read_line(words, problems).command;
  std::fprintf(stderr, "%s\n", foreign::shell_text(command).c_str());
  problems.throw_if_any();
  const auto program = std::ranges::find(command, "atelier");
  for (const std::string& variable : std::span(command.begin(), program)) {
    const size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(),
           /*overwrite=*/1);
  }
  std::vector<std::string> launch(std::next(program), command.end());
  if (launch.front() == "launch") {
    launch.erase(launch.begin());
  } else {
    launch.insert(launch.begin(), {"--nproc_per_node", "1", "--"});
  }
  return run_launch(launch);
}

}  // namespace atelier::cli
