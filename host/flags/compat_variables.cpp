#include "host/flags/compat_variables.h"

#include <algorithm>
#include <iterator>
#include <unistd.h>

namespace atelier::flags {
namespace {

constexpr CompatVariable kCompatVariables[] = {
    {"SDSCRIPTS_TORCH_COMPILE_ACTIVATION_MEMORY_BUDGET", "activation_memory_budget", ""},
    {"SDSCRIPTS_*", "", "operators are fused as they are built"},
    {"DIFFSYNTH_MODEL_BASE_PATH", "", ""},
    {"DIFFSYNTH_DOWNLOAD_SOURCE", "", ""},
    {"DIFFSYNTH_SKIP_DOWNLOAD", "", "nothing is ever downloaded"},
    {"DIFFSYNTH_ATTENTION_IMPLEMENTATION", "", "--attention forces one"},
    {"DIFFSYNTH_DISK_MAP_BUFFER_SIZE", "", "files are read once, piece by piece"},
    {"DIFFSYNTH_*", "", "the program does not read it"},
    {"TOKENIZERS_PARALLELISM", "", "the program does not read it"},
    {"WANDB_*", "", "there is no such log"},
    {"SWANLAB_*", "", "there is no such log"},
};

}  // namespace

const CompatVariable* find_compat_variable(std::string_view name) {
  const auto* it = std::find_if(
      std::begin(kCompatVariables), std::end(kCompatVariables), [&](const CompatVariable& v) {
        return v.name.ends_with('*') ? name.starts_with(v.name.substr(0, v.name.size() - 1))
                                     : name == v.name;
      });
  return it == std::end(kCompatVariables) ? nullptr : it;
}

std::vector<std::string> note_compat_variables() {
  std::vector<std::string> notes;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("SDSCRIPTS_") && !name.starts_with("DIFFSYNTH_")) continue;
    const CompatVariable* known = find_compat_variable(name);
    if (known->flag.empty() && known->why.empty()) continue;
    notes.push_back(
        name + " has no effect: " +
        (known->flag.empty() ? std::string(known->why) : "use --" + std::string(known->flag)));
  }
  std::sort(notes.begin(), notes.end());
  return notes;
}

}  // namespace atelier::flags
