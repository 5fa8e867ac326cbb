#include "host/run/occupants.h"

#include <algorithm>
#include <filesystem>

#include "host/files/temporary_file.h"
#include "host/run/durable.h"
#include "host/run/run_folder.h"

namespace atelier::run {

namespace {

bool is_result(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         name == "model_index.json";
}

// Whether a component of a model is in a folder, as diffusers writes them.
bool is_component(const std::string& folder) {
  std::error_code failure;
  return std::filesystem::exists(path_in(folder, "config.json"), failure);
}

// Whether a run's own folder of this name holds anything but leftovers.
bool is_filled(const std::string& folder) {
  const std::vector<std::string> names = folder_names(folder);
  return !std::all_of(names.begin(), names.end(), files::is_temporary);
}

}  // namespace

Occupants find_occupants(const std::string& folder) {
  Occupants found;
  for (const std::string& name : folder_names(folder)) {
    if (files::is_temporary(name)) continue;
    if (is_result(name) || is_component(path_in(folder, name))) found.results.push_back(name);
    if (name == kCheckpointsName && is_filled(path_in(folder, name))) found.results.push_back(name);
    if (name == kConfigName || name == kCsvName) found.records.push_back(name);
    if ((name == kPreviewsName || name == kTensorboardName) && is_filled(path_in(folder, name)))
      found.records.push_back(name);
  }
  return found;
}

}  // namespace atelier::run
