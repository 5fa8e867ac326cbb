// What `atelier inspect` says of a thing: one JSON object, printed as it is or as a few lines.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace atelier::cli {

using InspectedThing = nlohmann::ordered_json;

// True for the folder of a training run, for one of its states to resume from ("step-00000500"),
// and for a folder of encoded samples.
bool is_run_folder(const std::string& path);
bool is_state_folder(const std::string& path);
bool is_cache_folder(const std::string& path);

// Each takes what is_…_folder() answered true for. A state or a cache that is damaged has the
// reason under "refused".
InspectedThing inspect_run(const std::string& path);
InspectedThing inspect_state(const std::string& path);
InspectedThing inspect_cache(const std::string& path);

// Settings of `train`: how many, and those that say what is trained. What is wrong with them stands
// under "refused". Throws Error when the file cannot be read or is no TOML.
InspectedThing inspect_settings(const std::string& path);

// A table of step, key and value, as --enable_csv_log writes it: the range of its steps, and the
// last value of each key.
bool is_metrics(const std::vector<std::string>& columns);
InspectedThing inspect_metrics(const std::string& path);

// Lines for people on stdout. "refused" is left to the caller.
void print_inspected(const InspectedThing& thing);

}  // namespace atelier::cli
