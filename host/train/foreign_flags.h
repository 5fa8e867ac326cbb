// Flags of other programs' command lines: read so that a whole line can be pasted, and answered
// with what to use.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "host/cli/flags.h"
#include "host/report/problems.h"

namespace atelier::train {

// `arguments` without what belongs to a launcher (accelerate launch --config_file FILE train.py);
// each word of it becomes a problem.
std::vector<std::string> take_launcher_words(std::span<const std::string> arguments,
                                             report::Problems& problems);

// `arguments` without the flags that kohya's trainers have under another name or not at all; each
// becomes a problem that says what to use. Flags of one name and meaning here and there stay.
std::vector<std::string> take_kohya_flags(std::span<const std::string> arguments,
                                          report::Problems& problems);

// A line for each given flag that has no effect, and a problem for each whose effect would be
// missed.
std::vector<std::string> note_foreign_flags(const cli::ParsedFlags& flags,
                                            report::Problems& problems);

}  // namespace atelier::train
