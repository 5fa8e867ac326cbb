#include "host/order/training_checks.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include <c10/util/StringUtil.h>

#include "formats/escape.h"
#include "formats/utf8.h"
#include "host/data/sizes.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/model/components.h"

namespace atelier::order {
namespace {

using samples::TimestepSampling;

using formats::quote_and_escape;

// One look at a configuration.
class Checks {
 public:
  Checks(const Training& config, const flags::ParsedFlags& flags, const ModelFamily* family,
         report::Problems& problems)
      : config_(config), flags_(flags), family_(family), problems_(problems) {}

  void run() {
    check_targets();
    check_lora();
    check_first_values();
    check_dataset();
    data::check_sizes(config_.dataset, problems_);
    check_schedule();
    check_watching();
  }

 private:
  void add(std::string_view flag, const std::string& what, std::string hint = {},
           ErrorCode code = ErrorCode::kInvalidArgument) {
    problems_.add(flags_.place(flag) + ": " + what, std::move(hint), code);
  }
  bool is_given(std::string_view flag) const { return flags_.is_given(flag); }
  std::string text(std::string_view flag) const { return flags_.find_text(flag).value_or(""); }

  void check_component(std::string_view flag, const std::string& name) {
    if (family_ == nullptr) return;
    const std::vector<std::string> known = trainable_components(*family_);
    if (std::find(known.begin(), known.end(), name) != known.end()) return;
    const std::string nearest = report::nearest_name(name, known);
    // A short name of other letters is another name, and no slip: of "vace" and "vae".
    const bool is_slip = name.size() > 4 || std::is_permutation(name.begin(), name.end(),
                                                                nearest.begin(), nearest.end());
    add(flag,
        quote_and_escape(name) + " is no component of " + std::string(family_->name()) +
            " that can be trained: they are " + report::list_names(known),
        nearest.empty() || !is_slip ? "" : "did you mean " + nearest + "?");
  }

  void check_targets() {
    const LoraSettings& lora = config_.lora;
    std::set<std::string> whole;
    for (const std::string& path : config_.trainable_models) {
      check_component("trainable_models", model::component_of(path));
      if (!whole.insert(path).second)
        add("trainable_models", quote_and_escape(path) + " stands there twice");
    }
    std::set<std::string> adapted;
    for (const std::string& component : lora.base_models) {
      check_component("lora_base_model", component);
      if (!adapted.insert(component).second)
        add("lora_base_model", quote_and_escape(component) + " stands there twice");
      if (whole.contains(component))
        add("trainable_models", quote_and_escape(component) + " is trained whole and gets a LoRA",
            "leave out one of --trainable_models and --lora_base_model");
    }
    if (config_.stage == Stage::kDataProcess) return;
    if (!config_.trainable_models.empty() || !lora.base_models.empty()) return;
    const std::string name = denoiser_of(family_);
    problems_.add("nothing is trained", "give --lora_base_model " + name +
                                            " for a LoRA, or --trainable_models " + name +
                                            " to train the component whole");
  }

  void check_lora() {
    const LoraSettings& lora = config_.lora;
    if (!lora.checkpoint.empty() && lora.base_models.empty())
      add("lora_checkpoint", "no LoRA is trained", "give --lora_base_model as well");
    if (!lora.checkpoint.empty() && lora.base_models.size() > 1)
      add("lora_checkpoint", "one file cannot begin the LoRAs of several components",
          "train one component of --lora_base_model after the other");
    if (!lora.preset_path.empty() && lora.preset_model.empty())
      add("preset_lora_path", "the component that it belongs to is missing",
          "give --preset_lora_model " + denoiser_of(family_));
    if (!lora.preset_model.empty()) {
      check_component("preset_lora_model", lora.preset_model);
      if (lora.preset_path.empty())
        add("preset_lora_model", "the LoRA is missing", "give --preset_lora_path FILE");
    }
  }

  void check_first_values() {
    if (!config_.resume_from_checkpoint.empty()) {
      std::set<std::string> components;
      for (const std::string& path : config_.trainable_models)
        components.insert(model::component_of(path));
      if (components.size() != 1)
        add("resume_from_checkpoint",
            "holds one component, and " + std::to_string(components.size()) + " are trained",
            "name one with --trainable_models; a LoRA begins with --lora_checkpoint");
    }
    if (config_.resume.empty()) return;
    const std::pair<const char*, const std::string&> first[] = {
        {"lora_checkpoint", config_.lora.checkpoint},
        {"resume_from_checkpoint", config_.resume_from_checkpoint}};
    for (const auto& [flag, file] : first) {
      if (!file.empty())
        add(flag, "the run that is resumed brings its own values",
            "leave out --resume or --" + std::string(flag));
    }
  }

  void check_dataset() {
    const data::DatasetOptions& dataset = config_.dataset;
    const bool is_from_cache =
        config_.stage == Stage::kTrain && (is_given("cache_path") || is_cache(config_.cache_path));
    if (text("dataset_base_path").empty() && !is_from_cache)
      problems_.add("--dataset_base_path is missing",
                    config_.stage == Stage::kTrain
                        ? "give the folder of the dataset, or --cache_path"
                        : "give the folder of the dataset");
    if (family_ == nullptr) return;
    const std::vector<std::string> known = trained_inputs(*family_);
    for (const std::string& name : dataset.extra_inputs) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const std::string nearest = report::nearest_name(name, known);
      add("extra_inputs",
          quote_and_escape(name) + " is no input of " + std::string(family_->name()),
          nearest.empty() ? "they are " + report::list_names(known)
                          : "did you mean " + nearest + "?");
    }
  }

  void check_schedule() {
    if (config_.timesteps.min_timestep_boundary >= config_.timesteps.max_timestep_boundary)
      add("min_timestep_boundary", text("min_timestep_boundary") +
                                       " is not below --max_timestep_boundary " +
                                       text("max_timestep_boundary"));
    try {
      optim::check_lr_schedule(config_.lr_schedule);
    } catch (const Error& error) {
      problems_.add(error.at(flags_.place("lr_scheduler")));
    }
    if (config_.optimizer.kind == optim::Kind::kAdafactor ||
        config_.optimizer.kind == optim::Kind::kProdigy)
      problems_.collect([&] { optim::check_options(config_.optimizer); });
  }

  void check_watching() {
    const PreviewSettings& previews = config_.previews;
    const bool has_interval =
        previews.every_n_steps || previews.every_n_epochs || previews.at_first;
    if (!previews.prompts_file.empty() && !has_interval)
      add("sample_prompts", "when images are made is missing",
          "give --sample_every_n_steps, --sample_every_n_epochs or --sample_at_first");
    for (const char* flag : {"sample_every_n_steps", "sample_every_n_epochs"}) {
      if (previews.prompts_file.empty() && is_given(flag))
        add(flag, "there are no prompts", "give --sample_prompts FILE");
    }
    if (previews.prompts_file.empty() && previews.at_first)
      add("sample_at_first", "there are no prompts", "give --sample_prompts FILE");
    if (!config_.validation.base_path.empty()) return;
    for (const char* flag : {"validation_dataset_metadata_path", "validation_control_path",
                             "validation_steps", "validation_timesteps"}) {
      if (is_given(flag))
        add(flag, "there is no dataset to validate on", "give --validation_dataset_base_path");
    }
  }

  const Training& config_;
  const flags::ParsedFlags& flags_;
  const ModelFamily* family_;  // null: not known
  report::Problems& problems_;
};

}  // namespace

void check_config(const Training& config, const flags::ParsedFlags& flags,
                  const ModelFamily* family, report::Problems& problems) {
  Checks(config, flags, family, problems).run();
}

void check_files(const Training& config, const flags::ParsedFlags& flags, const ModelFamily* family,
                 report::Problems& problems) {
  std::error_code failure;
  const auto check = [&](std::string_view flag, const std::string& path) {
    if (path.empty() || std::filesystem::exists(path, failure)) return;
    problems.add(flags.place(flag) + ": " + files::display_path(path) + " is not there", "",
                 ErrorCode::kNotFound);
  };
  check("lora_checkpoint", config.lora.checkpoint);
  check("preset_lora_path", config.lora.preset_path);
  check("resume_from_checkpoint", config.resume_from_checkpoint);
  // Prompts are read and the dataset is opened with a family only.
  for (const char* flag :
       {"dataset_base_path", "dataset_metadata_path", "control_path", "sample_prompts"}) {
    if (family == nullptr) check(flag, flags.find_text(flag).value_or(""));
  }
  const std::string& base = config.dataset.dataset_base_path;
  if (config.stage == Stage::kTrain && config.dataset.dataset_metadata_path.empty() &&
      !base.empty() && !is_cache(config.cache_path))
    problems.add(flags.place("dataset_base_path") + ": " + files::display_path(base) +
                     " is no cache, and there is none in " + files::display_path(config.cache_path),
                 "run --task sft:data_process first", ErrorCode::kNotFound);
}

bool is_cache(const std::filesystem::path& folder) {
  return files::is_file(folder / "manifest.json");
}

namespace {

// Sizes and clips of samples that were made before.
void note_cached_sizes(const flags::ParsedFlags& flags, std::vector<std::string>& notes) {
  std::vector<std::string> given;
  for (const char* flag :
       {"height", "width", "max_pixels", "enable_bucket", "num_frames", "frame_extraction",
        "frame_stride", "frame_sample", "keep_frame_rate", "source_fps"}) {
    if (flags.is_given(flag)) given.push_back(flags.place(flag));
  }
  if (!given.empty())
    notes.push_back(c10::Join(", ", given) + ": samples that a cache has keep their sizes; say " +
                    (given.size() == 1 ? "it" : "them") + " where the cache is filled");
}

}  // namespace

std::vector<std::string> note_idle_flags(const Training& config, const flags::ParsedFlags& flags) {
  using enum TimestepSampling;
  std::vector<std::string> notes;
  const auto idle = [&](bool has_effect, std::string_view flag, const std::string& without) {
    if (!has_effect && flags.is_given(flag))
      notes.push_back(flags.place(flag) + " has no effect without " + without);
  };
  if (config.dataset.dataset_base_path.empty()) {
    for (const auto& [name, value] : config.dataset.texts_of_all)
      notes.push_back(flags.place(name) + " does not change samples that a cache has");
    note_cached_sizes(flags, notes);
  }
  const TimestepSampling sampling = config.timesteps.sampling;
  idle(sampling == kLogitNormal, "logit_mean", "--timestep_sampling logit_normal");
  idle(sampling == kLogitNormal, "logit_std", "--timestep_sampling logit_normal");
  idle(sampling == kMode, "mode_scale", "--timestep_sampling mode");
  idle(sampling == kShift, "discrete_flow_shift", "--timestep_sampling shift");
  idle(sampling == kShift || sampling == kSigmoid || sampling == kSigmoidDynamicShift,
       "sigmoid_scale", "--timestep_sampling sigmoid, shift or sigmoid_dynamic_shift");
  idle(config.lr_schedule.kind == "polynomial", "lr_scheduler_power", "--lr_scheduler polynomial");
  idle(config.lr_schedule.kind.starts_with("cosine"), "lr_scheduler_num_cycles",
       "--lr_scheduler cosine_with_restarts");
  for (const char* flag : {"lora_target_modules", "lora_rank", "lora_alpha", "lora_dropout",
                           "use_rslora", "loraplus_lr_ratio", "lora_format"})
    idle(!config.lora.base_models.empty(), flag, "--lora_base_model");
  for (const char* flag :
       {"bucket_reso_steps", "min_bucket_reso", "max_bucket_reso", "bucket_no_upscale"})
    idle(config.dataset.enable_bucket, flag, "--enable_bucket");
  for (const char* flag : {"param_size_threshold", "cpu_offload_split_threshold"}) {
    const bool is_on_host = config.offload.weights && config.offload.optimizer;
    idle(is_on_host || !config.model.placement.offload.empty(), flag,
         "--cpu_offload and --optimize_on_cpu");
  }
  if (config.activation_budget && flags.flag("use_gradient_checkpointing"))
    notes.push_back(flags.place("use_gradient_checkpointing") +
                    " has no effect beside --activation_memory_budget");
  const bool is_prodigy = config.optimizer.kind == optim::Kind::kProdigy;
  if (is_prodigy && config.learning_rate < 0.1)
    notes.push_back(flags.place("learning_rate") +
                    ": Prodigy finds the size of its steps itself and multiplies it by this; 1 is "
                    "usual");
  return notes;
}

std::vector<std::string> trainable_components(const ModelFamily& family) {
  std::vector<std::string> names = model::component_names(family);
  std::erase_if(names, [&](const std::string& name) {
    return model::has_role(family, name, Role::kTokenizer);
  });
  return names;
}

std::vector<std::string> trained_inputs(const ModelFamily& family) {
  std::vector<std::string> names;
  for (const InputSpec& input : family.inputs()) {
    if (input.use != InputUse::kGenerate) names.emplace_back(input.name);
  }
  return names;
}

std::string denoiser_of(const ModelFamily* family) {
  if (family == nullptr) return "dit";
  for (const ComponentSpec& component : family->components()) {
    if (component.role == Role::kDenoiser) return std::string(component.name);
  }
  return "NAME";
}

}  // namespace atelier::order
