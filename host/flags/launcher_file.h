// What tells other launchers how a run is shared out: accelerate's YAML, DeepSpeed's JSON, and the
// flags of accelerate launch, torchrun and deepspeed.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/report/problems.h"

namespace atelier::flags {

struct LauncherFile {
  // Flags of `atelier launch` and of `atelier train` that say the same: name, and the value as it
  // would be written ("true" of one that stands alone).
  std::vector<std::pair<std::string, std::string>> launch, train;
  // A line for each setting that is not there as it was, and why.
  std::vector<std::string> notes;
};

// Reads either kind of file, and the DeepSpeed file that one of accelerate's names. Settings that
// would make another run of it, unknown ones and wrong values become problems, which name the file
// and the setting.
LauncherFile read_launcher_file(const std::string& path, report::Problems& problems);

// Reads a launcher's command line. `words`: flags of kLauncher, names with underscores and without
// dashes, with their values, empty of those that stand alone.
LauncherFile read_launcher_words(std::span<const std::pair<std::string, std::string>> words,
                                 report::Problems& problems);

}  // namespace atelier::flags
