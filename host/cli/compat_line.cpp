// A command line of another trainer, pasted behind "atelier": answered with the one to run instead.
#include "host/train/compat_line.h"

#include <cstdio>

#include "host/cli/commands.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"

namespace atelier::cli {

int run_compat_line(std::span<const std::string> words) {
  const std::string plugin_path = flags::peek_flag(words, "plugin_path").value_or("");
  std::vector<std::string> families;
  for (const plugins::PluginFile& file : plugins::list_plugins(plugin_path)) {
    if (file.problem.empty()) families.push_back(file.family);
  }
  report::Problems problems;
  const ModelFamily* family = nullptr;
  if (const std::string name = train::family_of_line(words, families); !name.empty())
    problems.collect([&] { family = plugins::open_plugin(name, plugin_path).family; });
  const train::CompatLine line = train::rewrite_line(words, family, problems);
  for (const std::string& note : line.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::puts(train::shell_text(line.command).c_str());
  std::fflush(stdout);
  problems.throw_if_any();
  return 0;
}

}  // namespace atelier::cli
