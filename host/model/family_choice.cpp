#include "host/model/family_choice.h"

#include <vector>

#include "atelier/error.h"

#include "host/files/checkpoint.h"
#include "host/files/model_paths.h"
#include "host/model/model_loader.h"

namespace atelier::model {
namespace {

// How many of the checkpoints a family takes. What is wrong with them is told when they are used.
size_t count_taken(const ModelFamily& family, const files::FoundFiles& found) {
  size_t count = 0;
  report::Problems ignored;
  for (const files::FoundCheckpoint& item : found.checkpoints)
    ignored.collect([&] {
      if (!detect_parts(family, files::Checkpoint::open(item.files), {}).empty()) ++count;
    });
  return count;
}

// The families that take the most of the files, at least one.
std::vector<const plugins::Plugin*> families_of_files(const FamilyFlags& request,
                                                      report::Problems& problems) {
  const files::FoundFiles found =
      files::find_model_files(request.model_paths, request.model_id_with_origin_paths, problems);
  std::vector<const plugins::Plugin*> best;
  if (found.checkpoints.empty()) return best;
  size_t most = 1;
  for (const plugins::Plugin* plugin : plugins::open_plugins(request.plugin_path)) {
    const size_t count = count_taken(*plugin->family, found);
    if (count < most) continue;
    if (count > most) best.clear();
    most = count;
    best.push_back(plugin);
  }
  return best;
}

}  // namespace

const plugins::Plugin* choose_family(const FamilyFlags& request, report::Problems& problems) {
  if (request.plugin) {
    try {
      return &plugins::open_plugin(*request.plugin, request.plugin_path);
    } catch (const Error& error) {
      problems.add(error);
    }
  }
  const auto fitting = families_of_files(request, problems);
  if (!request.plugin && fitting.size() != 1) {
    std::string names;
    for (const plugins::Plugin* plugin : fitting)
      names += (names.empty() ? "" : " and ") + plugin->file.family;
    problems.add("--plugin is missing",
                 names.empty() ? "name the model family; atelier plugins lists them"
                               : "the files are of " + names + "; say which with --plugin");
  }
  return fitting.size() == 1 ? fitting.front() : nullptr;
}

}  // namespace atelier::model
