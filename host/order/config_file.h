// Configurations as TOML: keys are names of flags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atelier/error.h"

#include "host/flags/flags.h"
#include "host/report/problems.h"

namespace atelier::order {

// The keys of `text` as values of the command's flags, in the order of their lines. Lists may stand
// for flags of parts separated by commas, and lists and tables for flags of JSON. `file` names the
// text in messages. An unknown key or a value of the wrong type becomes a problem with its line;
// what is no TOML is thrown as Error{kInvalidArgument}.
std::vector<flags::GivenValue> parse_config_text(const std::string& text, const std::string& file,
                                                 const flags::CommandSpec& command,
                                                 report::Problems& problems);

inline constexpr std::string_view kAiToolkit = "ai-toolkit", kDiffusionPipe = "diffusion-pipe";

// What is wrong with a file that another program is configured with, named by `place`: of
// ai-toolkit or of diffusion-pipe.
Error other_configuration(const std::string& place, std::string_view program);

// The text of a file of --config. Throws Error{kNotFound} or {kEnvironment} when it cannot be read.
std::string read_config(const std::string& path);

// Every flag that has a value, under the headings of the help. parse_config_text() gives the same
// values, but for paths: they are absolute, so that the text means the same in any folder. Flags
// that say where to begin are left out: see is_beginning().
std::string write_config(const flags::CommandSpec& command, const flags::ParsedFlags& flags);

// Flags that say what else to read or what to do instead, and are no part of a configuration:
// config, resume, dry_run.
bool is_beginning(std::string_view name);

// Whether the flag's value is the path of one file or folder.
bool is_path(const flags::FlagSpec& flag);

}  // namespace atelier::order
