// What a training run left: its folder, states to resume from, encoded samples, settings, metrics.
#pragma once

#include <string>
#include <vector>

#include "host/inspect/inspect.h"

namespace atelier::inspect {

// True for the folder of a training run, for one of its states to resume from ("step-00000500"),
// and for a folder of encoded samples.
bool is_run_folder(const std::string& path);
bool is_state_folder(const std::string& path);
bool is_cache_folder(const std::string& path);

// Each takes what is_…_folder() answered true for. A state or a cache that is damaged has the
// reason under "refused".
Thing inspect_run(const std::string& path);
Thing inspect_state(const std::string& path);
Thing inspect_cache(const std::string& path);

// Settings of `train`: how many, and those that say what is trained. What is wrong with them stands
// under "refused". Throws Error when the file cannot be read or is no TOML.
Thing inspect_settings(const std::string& path);

// A table of step, key and value, as --enable_csv_log writes it: the range of its steps, and the
// last value of each key.
bool is_metrics(const std::vector<std::string>& columns);
Thing inspect_metrics(const std::string& path);

}  // namespace atelier::inspect
