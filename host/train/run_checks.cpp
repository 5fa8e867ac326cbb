#include "host/train/run_checks.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <unistd.h>

#include "formats/escape.h"
#include "host/files/content_hash.h"
#include "host/files/file_operations.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/model/components.h"
#include "host/model/fingerprint.h"
#include "host/order/config_file.h"
#include "host/parameters/shard_files.h"
#include "host/report/open_failure.h"
#include "host/report/text.h"
#include "host/run/durable.h"
#include "host/run/occupants.h"
#include "host/samples/cache_manifest.h"

namespace atelier::train {

using order::Stage;
using order::Training;
using parameters::Selection;
using samples::Manifest;

namespace fs = std::filesystem;

namespace {

using files::display_path;
using report::Problems;

// Whether the folder's config.toml is, to the byte, what this run would write; that is empty where
// mistakes were found.
bool began_here(const Training& config) {
  if (config.effective_toml.empty()) return true;
  const std::string path = run::path_in(config.output.output_path, run::kConfigName);
  std::error_code failure;
  return fs::is_regular_file(path, failure) && files::read_text_file(path) == config.effective_toml;
}

// False where a problem was added: there is something else.
bool check_is_folder(const std::string& flag, const std::string& folder, Problems& problems) {
  std::error_code failure;
  const fs::file_status status = fs::status(folder, failure);
  const bool is_else = fs::exists(status) && !fs::is_directory(status);
  if (!is_else && !report::is_wrong_path(failure.value())) return true;
  problems.add("--" + flag + ": " + display_path(folder) + ": " +
                   (is_else ? "is no folder" : failure.message()),
               "name a folder");
  return false;
}

// Looks at the folder, or at the one that it is made in. False where a problem was added.
bool check_is_writable(const std::string& flag, const std::string& folder, Problems& problems) {
  std::error_code failure;
  fs::path place = fs::absolute(folder, failure);
  while (place.has_relative_path() && !fs::exists(place, failure)) place = place.parent_path();
  if (!fs::is_directory(place, failure)) {
    problems.add("--" + flag + ": " + display_path(place.string()) + ": is no folder",
                 "name a folder");
    return false;
  }
  if (::faccessat(AT_FDCWD, place.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return true;
  problems.add("--" + flag + ": cannot write into the folder " + display_path(place.string()),
               "choose another one, or change its permissions");
  return false;
}

// The file of weights that was written last; empty: there is none, or it is one of several.
std::string newest_weights(const std::string& folder, const std::vector<std::string>& names) {
  std::string newest;
  fs::file_time_type time = fs::file_time_type::min();
  for (const std::string& name : names) {
    const std::string path = run::path_in(folder, name);
    std::error_code failure;
    const fs::file_time_type written = fs::last_write_time(path, failure);
    if (failure || written < time || !name.ends_with(".safetensors")) continue;
    newest = name.find("-of-") == std::string::npos ? path : std::string();
    time = written;
  }
  return newest;
}

// What can be done with a folder of a run that has weights, but no state.
std::string begin_with_weights(const Training& config, const run::Occupants& found) {
  const std::string& folder = config.output.output_path;
  const std::string weights = newest_weights(folder, found.results);
  if (weights.empty()) return "move them away";
  const bool is_begun = std::ranges::count(found.records, run::kConfigName) > 0;
  const std::string settings =
      is_begun ? "--config " + display_path(run::path_in(folder, run::kConfigName)) + " " : "";
  return "there is no checkpoint: leave --resume out, and begin with the weights by " + settings +
         (config.lora.base_models.empty() ? "--resume_from_checkpoint " : "--lora_checkpoint ") +
         display_path(weights) + " --output_path FOLDER";
}

// What can be done about files of another run.
std::string way_out(const Training& config, const run::Occupants& found) {
  const std::string& folder = config.output.output_path;
  std::error_code failure;
  if (config.output.is_resumed) return begin_with_weights(config, found);
  if (fs::exists(run::path_in(folder, run::kCheckpointsName), failure))
    return "go on with that run by --resume " + display_path(folder);
  const bool is_begun = std::ranges::count(found.records, run::kConfigName) > 0;
  if (found.results.empty() && is_begun)
    return "begin that run again by --resume " + display_path(folder) + ", move them away";
  return "move them away";
}

using Counts = std::map<std::string, int64_t>;

// The tensors that this run trains, and of how many numbers they are.
Counts trained_counts(const Selection& selection, const Training& config) {
  Counts counts;
  for (const auto& trained : selection.weights)
    counts[trained.component + "." + trained.path] = trained.weight->numel();
  for (const auto& layer : selection.layers) {
    const std::string name = layer.component + "." + layer.path;
    counts[name + ".lora_A"] = config.lora.rank * layer.linear->in_features();
    counts[name + ".lora_B"] = layer.linear->out_features() * config.lora.rank;
  }
  return counts;
}

// The name of a tensor that only one of them has, or has otherwise; empty: they are the same.
std::string first_difference(const Counts& ours, const Counts& theirs) {
  for (const auto& [name, count] : ours) {
    const auto found = theirs.find(name);
    if (found == theirs.end() || found->second != count) return name;
  }
  for (const auto& [name, count] : theirs)
    if (!ours.contains(name)) return name;
  return {};
}

// In the order of their names.
std::vector<std::string> running_controls(const model::LoadedModel& model,
                                          const Selection& selection) {
  std::vector<std::string> names;
  for (const std::string& name : parameters::running_components(model, selection)) {
    if (model::has_role(model.family(), name, Role::kControl)) names.push_back(name);
  }
  return names;
}

class ResumeChecks {
 public:
  ResumeChecks(const run::SavedState& saved_state, model::LoadedModel& model,
               const Selection& selection, const Training& config, Problems& problems)
      : saved_state_(saved_state),
        model_(model),
        selection_(selection),
        config_(config),
        problems_(problems),
        ours_(values_of(config.effective_toml)),
        theirs_(values_of(saved_state.text("config.toml"))) {}

  void run() {
    if (saved_state_.facts.value("family", "") != model_.family().name()) {
      refuse("plugin");
      return;
    }
    if (trains_same_components()) check_model();
    check_trained();
    if (!selection_.layers.empty()) check_lora_factor();
    check_preset();
    refuse_if_changed("optimizer_type");
    if (!selection_.weights.empty()) refuse_if_changed("master_weights");
    if (config_.ema_decay > 0 && !parameters::has_part(saved_state_, "ema")) refuse("ema_decay");
  }

 private:
  using Values = std::map<std::string, std::string>;

  Values values_of(const std::string& toml) const {
    Values values;
    Problems ignored;  // told where the configuration was read
    for (flags::GivenValue& value : order::parse_config_text(
             toml, "config.toml", order::train_command(&model_.family()), ignored))
      values[value.name] = std::move(value.text);
    return values;
  }

  // Empty where nothing is said.
  static std::string text_of(const Values& values, const std::string& flag) {
    const auto found = values.find(flag);
    return found == values.end() ? std::string() : found->second;
  }

  void refuse(const std::string& flag, const std::string& ours, const std::string& theirs) {
    const auto shown = [](const std::string& text) {
      return text.empty() ? "none" : formats::quote_and_escape(text);
    };
    problems_.add(
        "--" + flag + ": " + shown(ours) + ", and the run that is resumed has " + shown(theirs),
        "leave it out, or begin another run in another --output_path");
  }
  void refuse(const std::string& flag) {
    refuse(flag, text_of(ours_, flag), text_of(theirs_, flag));
  }
  bool refuse_if_changed(const std::string& flag) {
    if (text_of(ours_, flag) == text_of(theirs_, flag)) return false;
    refuse(flag);
    return true;
  }

  // Another choice of components is told by check_trained(), and has other files beside it.
  bool trains_same_components() const {
    std::set<std::string> ours, theirs;
    for (const auto& [name, count] : trained_counts(selection_, config_))
      ours.insert(model::component_of(name));
    for (const auto& [name, saved] : parameters::values_of_part(saved_state_, "trained"))
      theirs.insert(model::component_of(name));
    return ours == theirs;
  }

  void check_model() {
    const std::string theirs = saved_state_.facts.value("model", "");
    if (theirs.empty() || theirs == fingerprint_of(model_, selection_)) return;
    std::string ours;
    for (const model::RangedDenoiser& denoiser : parameters::running_denoisers(model_, selection_))
      ours += (ours.empty() ? "" : ", ") +
              display_path(model_.find_part(denoiser.name())->checkpoint.name());
    for (const std::string& control : running_controls(model_, selection_))
      ours += ", " + display_path(model_.find_part(control)->checkpoint.name());
    problems_.add("--resume: " + display_path(saved_state_.folder) +
                      " is of a run on other weights than those of " + ours,
                  "pass the model files that the run began with");
  }

  void check_trained() {
    Counts theirs;
    std::set<at::ScalarType> ours;  // dtypes in which weights are trained now
    for (const auto& trained : selection_.weights)
      ours.insert(trained.weight->drawn_dtype(model_.dtype(trained.component)));
    bool has_dtype = false;
    for (const auto& [name, saved] : parameters::values_of_part(saved_state_, "trained")) {
      theirs[name] = saved.numel;
      has_dtype |= ours.contains(saved.dtype);
    }
    if (!selection_.weights.empty() && !has_dtype && refuse_if_changed("dtype")) return;
    const std::string name = first_difference(trained_counts(selection_, config_), theirs);
    if (name.empty()) return;
    bool is_told = false;
    for (const char* flag :
         {"trainable_models", "lora_base_model", "lora_target_modules", "lora_rank"})
      is_told |= refuse_if_changed(flag);
    if (is_told) return;
    problems_.add("--resume: " + display_path(saved_state_.folder) + " is of a run that trains " +
                      "other tensors: " + formats::quote_and_escape(name) + " is not in both",
                  "begin another run in another --output_path");
  }

  // Another factor would change what the trained weights mean.
  void check_lora_factor() {
    refuse_if_changed("use_rslora");
    if (text_of(ours_, "lora_rank") != text_of(theirs_, "lora_rank")) return;  // told
    const std::string ours = alpha_of(ours_), theirs = alpha_of(theirs_);
    if (report::parse_number<double>(ours) != report::parse_number<double>(theirs))
      refuse("lora_alpha", ours, theirs);
  }
  static std::string alpha_of(const Values& values) {
    const std::string alpha = text_of(values, "lora_alpha");
    return alpha.empty() ? text_of(values, "lora_rank") : alpha;
  }

  // The LoRA may have been moved: a file that is not there any more is not compared.
  void check_preset() {
    const std::string ours = text_of(ours_, "preset_lora_path");
    const std::string theirs = text_of(theirs_, "preset_lora_path");
    if (ours.empty() != theirs.empty() || !may_be_one_file(ours, theirs)) {
      refuse("preset_lora_path");
    } else {
      refuse_if_changed("preset_lora_model");
    }
  }
  static bool may_be_one_file(const std::string& ours, const std::string& theirs) {
    return ours == theirs || !files::is_file(theirs) ||
           files::hash_file(ours) == files::hash_file(theirs);
  }

  const run::SavedState& saved_state_;
  model::LoadedModel& model_;
  const Selection& selection_;
  const Training& config_;
  Problems& problems_;
  Values ours_, theirs_;
};

}  // namespace

void check_output_folder(const Training& config, Problems& problems) {
  const std::string& folder = config.output.output_path;
  if (!check_is_folder("output_path", folder, problems)) return;
  if (config.stage == Stage::kDataProcess) return;
  if (!check_is_writable("output_path", folder, problems)) return;
  const bool goes_on = config.output.is_resumed && !config.resume.empty();
  if (goes_on) return;
  const run::Occupants found = run::find_occupants(folder);
  std::vector<std::string> names = found.results;
  if (!found.records.empty() && !config.output.is_resumed && !began_here(config))
    names.insert(names.end(), found.records.begin(), found.records.end());
  if (names.empty()) return;
  const size_t before = problems.size();
  problems.collect([&] { run::check_lock(folder); });
  if (problems.size() > before) return;  // nobody else has anything to do there
  problems.add("--output_path: " + display_path(folder) +
                   " holds files of another run or of a model: " + report::list_names(names, 5),
               way_out(config, found) + ", or choose another folder");
}

void check_cache_folder(const Training& config, Problems& problems) {
  if (config.stage == Stage::kTrain || config.dry_run) return;
  const std::string& output = config.output.output_path;
  const std::string& folder = config.cache_path;
  const bool is_own = folder == (fs::path(output) / "cache").string();
  const char* const flag = is_own ? "output_path" : "cache_path";
  if (!check_is_folder(flag, is_own ? output : folder, problems)) return;
  // A cache that is whole is not written to.
  if (!files::is_file(Manifest::path(folder))) check_is_writable(flag, folder, problems);
}

std::string fingerprint_of(const model::LoadedModel& model, const Selection& selection) {
  std::string all;
  for (const model::RangedDenoiser& denoiser : parameters::running_denoisers(model, selection)) {
    if (!all.empty()) all += ',';
    all += model::fingerprint(*model.find_part(denoiser.name()));
  }
  for (const std::string& control : running_controls(model, selection))
    all.append(",").append(model::fingerprint(*model.find_part(control)));
  return all;
}

void check_resume(const run::SavedState& saved_state, model::LoadedModel& model,
                  const Selection& selection, const Training& config, Problems& problems) {
  ResumeChecks(saved_state, model, selection, config, problems).run();
}

}  // namespace atelier::train
