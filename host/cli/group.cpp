#include "host/cli/group.h"

#include <cstdio>
#include <vector>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/report/problems.h"

namespace atelier::cli {

int run_group(const std::string& group, const std::string& summary,
              std::span<const Command> commands, const std::string& example,
              std::span<const std::string> arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    std::printf("atelier %s COMMAND [flags]\n%s\n\n", group.c_str(), summary.c_str());
    for (const Command& command : commands) std::printf("  %-14s %s\n", command.name, command.help);
    std::printf("\natelier %s COMMAND --help lists its flags.\n", group.c_str());
    return arguments.empty() ? 2 : 0;
  }
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (arguments[0] == command.name) return command.run(arguments.subspan(1));
    names.emplace_back(command.name);
  }
  const std::string nearest = report::nearest_name(arguments[0], names);
  throw Error(ErrorCode::kInvalidArgument,
              group + " " + formats::quote_and_escape(arguments[0]) + " is not known; there are " +
                  report::list_names(names),
              nearest.empty() ? example : "did you mean " + nearest + "?");
}

}  // namespace atelier::cli
