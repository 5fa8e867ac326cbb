// Commands with others below them, as "atelier lora info".
#pragma once

#include <span>
#include <string>

#include "host/cli/commands.h"

namespace atelier::cli {

// Runs the command of the group that the first argument names, on the arguments behind it, or
// prints what there are. `example` is a line to try. Returns the exit code; throws
// Error{kInvalidArgument} for a name that is not known.
int run_group(const std::string& group, const std::string& summary,
              std::span<const Command> commands, const std::string& example,
              std::span<const std::string> arguments);

}  // namespace atelier::cli
