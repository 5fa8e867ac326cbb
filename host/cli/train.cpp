// atelier train: LoRA and full training.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "atelier/error.h"

#include "host/cli/commands.h"
#include "host/cli/family.h"
#include "host/cli/lora.h"
#include "host/cli/plan.h"
#include "host/cli/process_flags.h"
#include "host/data/dataset.h"
#include "host/files/safetensors_writer.h"
#include "host/lora/registry.h"
#include "host/model/model_loader.h"
#include "host/plan/size_guard.h"
#include "host/plugins/plugin_loader.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/run/memory_timeline.h"
#include "host/run/run_folder.h"
#include "host/run/stop.h"
#include "host/train/config.h"
#include "host/train/foreign_line.h"
#include "host/train/preview.h"
#include "host/train/row_check.h"
#include "host/train/run_checks.h"
#include "host/train/sample_prompts.h"
#include "host/train/samples.h"
#include "host/train/selection.h"
#include "host/train/starting_weights.h"
#include "host/train/trainer.h"

namespace atelier::cli {
namespace {

namespace fs = std::filesystem;
using model::LoadedModel;
using report::Problems;
using train::CachedParts;
using train::Config;
using train::Samples;
using train::Stage;

// Everything that is known before a weight is read.
struct Plan {
  Config config;
  std::unique_ptr<LoadedModel> model;
  train::Selection selection;
  std::shared_ptr<const data::Dataset> dataset, validation;
  std::vector<generate::Settings> prompts;
  std::optional<run::Checkpoint> resumed;
  std::optional<train::StartingWeights> starting_weights;
  std::unique_ptr<lora::Registry> preset;
  std::optional<plan::Planned> memory;
  std::string unplanned;  // why there is no plan of the memory; empty: none is needed
};

bool trains(const Config& config, std::string_view component) {
  for (const std::string& name : config.trained_names()) {
    if (name.substr(0, name.find('.')) == component) return true;
  }
  return false;
}

// The components that this stage uses; empty: all that the family requires.
std::vector<std::string> needed_components(const ModelFamily& family, const Config& config) {
  if (config.stage == Stage::kBoth || !config.samples.prompts_file.empty()) return {};
  std::vector<std::string> names;
  for (const ComponentSpec& component : family.components()) {
    const Phases& phases = component.phases;
    const bool is_used = config.stage == Stage::kDataProcess
                             ? phases.encode
                             : phases.denoise || trains(config, component.name);
    if (is_used) names.emplace_back(component.name);
  }
  return names;
}

void open_preset(Plan& plan, Problems& problems) {
  const train::LoraSettings& lora = plan.config.lora;
  if (lora.preset_path.empty() || lora.preset_model.empty()) return;
  if (lora.preset_model != plan.model->denoiser()->detection.component &&
      !plan.selection.trains(lora.preset_model)) {
    problems.add(
        "--preset_lora_model: " + lora.preset_model + " works ahead of training, without it",
        "name the denoiser, or a component that is trained");
    return;
  }
  for (const auto& trained : plan.selection.weights) {
    if (trained.component != lora.preset_model || !plan.model->is_streamed(*trained.weight))
      continue;
    problems.add("--preset_lora_model: weights of " + lora.preset_model +
                     " are trained and rest on the host: nothing can be added to them",
                 "leave out --optimize_on_cpu and --offload", ErrorCode::kUnsupported);
    return;
  }
  problems.collect([&] {
    plan.preset = std::make_unique<lora::Registry>(*plan.model);
    const lora::Use use{"preset", lora.preset_path, 1.0};
    plan.preset->check(use.path);
    if (plan.preset->fingerprint(std::span(&use, 1), lora.preset_model).empty())
      problems.add(
          "--preset_lora_path: " + lora.preset_path + " changes nothing in " + lora.preset_model,
          "name its component with --preset_lora_model");
  });
}

// What the user should know about places on this machine.
void note_places(const Plan& plan, progress::Progress& progress) {
  const train::OffloadSettings& offload = plan.config.offload;
  const LoadedModel& model = *plan.model;
  for (const std::string& note : model.notes()) progress.note("note: " + note);
  if ((offload.weights || offload.optimizer) && model.device().is_cpu() && !model.is_stand_in())
    progress.note(
        "note: --cpu_offload and --optimize_on_cpu have no effect on the CPU: weights and the "
        "optimizer's state are in host memory anyway");
}

// Decides where trained weights rest. Reads no values.
void place_trained(Plan& plan, Problems& problems) {
  const train::OffloadSettings& offload = plan.config.offload;
  LoadedModel& model = *plan.model;
  const auto& places = plan.config.model.placement.offload;
  std::set<const Weight*> stay;
  std::set<std::string> on_disk;
  for (const auto& trained : plan.selection.weights) {
    const auto place = places.find(trained.component);
    if (place == places.end() && !offload.optimizer) stay.insert(trained.weight);
    if (place != places.end() && place->second == memory::Place::kDisk)
      on_disk.insert(trained.component);
  }
  for (const std::string& component : on_disk)
    problems.add("--offload " + component + "=disk: its weights are trained, files are not changed",
                 "use " + component + "=host");
  model.keep_on_device(stay);
}

// Weights that are not trained are not in checkpoints: the run that is resumed would lose them.
void open_starting_weights(Plan& plan, Problems& problems) {
  const std::string& file = plan.config.resume_from_checkpoint;
  if (file.empty()) return;
  problems.collect([&] {
    plan.starting_weights.emplace(*plan.model, file);
    const std::string& component = plan.starting_weights->component();
    const auto& names = plan.config.trainable_models;
    if (std::find(names.begin(), names.end(), component) == names.end())
      problems.add(
          "--resume_from_checkpoint: " + file + ": " + component + " is not trained as a whole",
          "give the file to --model_paths in place of the model's own");
  });
}

void read_prompts(Plan& plan, const ModelFamily& family, generate::TextLengths* lengths,
                  const plan::SizeGuard* sizes, Problems& problems) {
  const std::string& file = plan.config.samples.prompts_file;
  if (file.empty()) return;
  generate::Settings base;
  problems.collect([&] {
    if (const auto size = train::size_of_samples(plan.config, plan.dataset.get())) {
      base.height = size->height;
      base.width = size->width;
    }
  });
  for (const generate::Job& job :
       train::read_sample_prompts(file, base, family.inputs(), problems)) {
    const size_t before = problems.size();
    generate::check_settings(job.settings, &family, job.place, problems);
    if (plan.model == nullptr) continue;
    generate::check_against_model(job.settings, family, plan.model->model(),
                                  plan.model->denoiser()->detection.variant, job.place, problems);
    lengths->check(job.settings, family, job.place, problems);
    if (sizes != nullptr && problems.size() == before)
      sizes->check(job.settings, job.place, std::nullopt, /*may_tile=*/false, problems);
    plan.prompts.push_back(job.settings);
  }
}

std::shared_ptr<const data::Dataset> open_dataset(const data::DatasetOptions& options,
                                                  LoadedModel& model, const data::RowCheck& check,
                                                  progress::Progress& progress,
                                                  Problems& problems) {
  std::shared_ptr<const data::Dataset> dataset;
  problems.collect([&] {
    dataset = std::make_shared<const data::Dataset>(data::Dataset::open(
        options, model.family().inputs(), model.model().latent_spec(), problems, check));
    for (const std::string& warning : dataset->warnings()) progress.warn("warning: " + warning);
  });
  return dataset;
}

void plan_memory(Plan& plan, const plan::MemoryWishes& wishes) {
  const Config& config = plan.config;
  plan::TrainingAsked asked = {config, plan.selection, plan.dataset.get(), plan.prompts};
  if (config.memory.says_prefetch) asked.prefetch = config.model.placement.prefetch;
  plan.memory = plan::plan_training(*plan.model, wishes, asked, plan.unplanned);
}

// Places weights, activations and the optimizer as they are planned.
void follow_plan(Plan& plan, progress::Progress& progress) {
  if (!plan.unplanned.empty()) progress.warn("warning: no plan: " + plan.unplanned);
  if (!plan.memory) return;
  note_plan(*plan.memory, progress);
  plan::apply_to_training(*plan.memory, plan.config);
  plan.model->rearrange(plan.config.model);
  Problems problems;
  place_trained(plan, problems);
  problems.throw_if_any();
}

// Checks the whole request; throws one error with all that is wrong.
Plan make_plan(std::span<const std::string> arguments, const PlanOnly* only) {
  Problems problems;
  Plan plan;
  const plugins::Plugin* const plugin = choose_train_family(arguments, problems);
  plan.config = train::parse_config(arguments, plugin ? plugin->family : nullptr, problems);
  Config& config = plan.config;
  progress::Progress progress(progress::stderr_options(config.log.quiet));
  for (const std::string& note : config.notes) progress.note("note: " + note);
  apply_process_flags(config.process.attention, config.process.kernels, config.process.threads,
                      problems);
  if (only == nullptr) train::check_output_folder(config, problems);
  if (plugin == nullptr) problems.throw_if_any();
  const ModelFamily& family = *plugin->family;
  config.model.components = needed_components(family, config);
  plan::MemoryWishes wishes = {.vram = config.memory.vram,
                               .host_memory = config.memory.host_memory,
                               .allow_storage = config.memory.allow_storage};
  if (only != nullptr) plan_elsewhere(*only, wishes, config.model);
  const size_t before_wishes = problems.size();
  problems.collect([&] { plan::check_wishes(wishes); });
  const bool has_wishes = problems.size() == before_wishes;
  problems.collect([&] { plan.model = LoadedModel::open(family, config.model); });
  // Without its files the rest is checked all the same.
  std::unique_ptr<LoadedModel> without_files;
  if (plan.model == nullptr) without_files = LoadedModel::open_empty(family);
  LoadedModel& model = plan.model ? *plan.model : *without_files;
  if (plan.model != nullptr && (only == nullptr || only->device_profile.empty()))
    note_places(plan, progress);

  if (plan.model != nullptr && config.stage != Stage::kDataProcess) {
    plan.selection = train::select_trained(model, config, problems);
    place_trained(plan, problems);
    open_preset(plan, problems);
    if (!config.lora.base_model.empty()) warn_of_format(progress, config.lora.format);
    if (!config.lora.checkpoint.empty())
      problems.collect(
          [&] { train::check_lora_checkpoint(model, plan.selection, config.lora, problems); });
    if (model.dtype() == at::kHalf)
      problems.add("--dtype: gradients of float16 vanish without a scaled loss",
                   "use bfloat16 or float32", ErrorCode::kUnsupported);
    open_starting_weights(plan, problems);
    problems.collect([&] {
      const train::Timesteps checked(family.training_schedule(model.denoiser()->detection),
                                     config.timesteps);
    });
  }
  std::optional<generate::TextLengths> lengths;
  if (plan.model != nullptr) lengths.emplace(model.model(), family.name(), config.model.cuts_texts);
  const auto check = [&](bool is_learnt) {
    return lengths ? train::row_check(config, family, *lengths, is_learnt) : data::RowCheck();
  };
  if (!config.dataset.dataset_base_path.empty())
    plan.dataset =
        open_dataset(config.dataset, model, check(/*is_learnt=*/true), progress, problems);
  if (plan.dataset != nullptr && !plan.dataset->items().empty())
    problems.collect([&] { data::Order::check(plan.dataset->items().size(), config.order); });
  if (!config.validation.base_path.empty()) {
    data::DatasetOptions options = config.dataset;
    options.dataset_base_path = config.validation.base_path;
    options.dataset_metadata_path = config.validation.metadata_path;
    plan.validation = open_dataset(options, model, check(/*is_learnt=*/false), progress, problems);
  }
  const CachedParts cached = train::cached_parts(family, config.trained_names());
  if (plan.dataset == nullptr && config.dataset.dataset_base_path.empty() &&
      !(cached.text && cached.latents))
    problems.add("--dataset_base_path: a cache alone does not do where an encoder is trained",
                 "give the dataset");
  std::optional<plan::SizeGuard> sizes;
  if (has_wishes && plan.model != nullptr) sizes.emplace(model, config.model, wishes);
  read_prompts(plan, family, lengths ? &*lengths : nullptr, sizes ? &*sizes : nullptr, problems);
  if (sizes && plan.dataset != nullptr)
    sizes->check(*plan.dataset, config, plan.selection, problems);
  if (sizes && plan.validation != nullptr) sizes->check(*plan.validation, problems);
  if (!config.resume.empty() && problems.empty()) {
    problems.collect([&] {
      plan.resumed = run::find_checkpoint(config.resume, [](const std::string&) {});
      if (config.stage != Stage::kDataProcess)
        train::check_resume(*plan.resumed, model, plan.selection, config, problems);
    });
  }
  problems.throw_if_any();
  if (const std::string note = lengths->note(); !note.empty()) progress.note("note: " + note);
  plan_memory(plan, wishes);
  if (only == nullptr) follow_plan(plan, progress);
  return plan;
}

void load(LoadedModel& model, const std::string& component, progress::Progress& progress) {
  if (model.is_loaded(component)) return;
  progress::Step step(progress, "load " + component, 0, progress::Unit::kBytes);
  model.load_component(component, [&](const model::LoadProgress& state) {
    step.set(state.bytes_done, state.bytes_total);
    if (run::StopSignals::requested()) throw Error(ErrorCode::kCancelled, "stopped by a signal");
  });
  step.finish();
}

Samples samples_of(const Plan& plan, const std::shared_ptr<const data::Dataset>& dataset,
                   const std::string& folder) {
  const Config& config = plan.config;
  const bool drops_captions = config.caption_dropout_rate > 0;
  if (dataset == nullptr) return Samples::of_cache(folder, *plan.model, drops_captions);
  const CachedParts cached = train::cached_parts(plan.model->family(), config.trained_names());
  return Samples::of_dataset(dataset, *plan.model, cached, folder, drops_captions);
}

// Encodes what is not there; false when a signal ended it.
bool fill(Samples& samples, const Plan& plan, progress::Progress& progress) {
  if (plan.config.stage == Stage::kTrain) {
    if (samples.missing() == 0) return true;
    throw Error(ErrorCode::kNotFound,
                plan.config.cache_path + ": " + std::to_string(samples.missing()) +
                    " entries are not there or not of these rows",
                "run the task sft:data_process again, or sft, which does both", "CACHE_INCOMPLETE");
  }
  return samples.fill(*plan.model, plan.config.dataset_num_workers, progress,
                      [] { return run::StopSignals::requested().has_value(); });
}

int leave() {
  return run::StopSignals::exit_code(run::StopSignals::requested().value());
}

void write_config(const Config& config) {
  files::write_file((fs::path(config.output.output_path) / run::kConfigName).string(),
                    config.effective_toml);
}

// Whether the checkpoint that is resumed is the end of its run, with its weights beside it.
bool is_finished(const Plan& plan, const Samples& samples, progress::Progress& progress) {
  const Config& config = plan.config;
  if (!plan.resumed) return false;
  const int64_t step = plan.resumed->step, total = train::count_steps(samples, config);
  if (step < total) return false;
  progress.warn("the run is finished: step " + std::to_string(step) + " of " +
                std::to_string(total) + "; to go on, give " +
                (config.max_train_steps
                     ? "a larger --max_train_steps than " + std::to_string(*config.max_train_steps)
                     : "a larger --num_epochs than " + std::to_string(config.num_epochs)));
  return train::find_weights_to_write(*plan.resumed, plan.selection, config).empty();
}

std::string describe(const train::Trainer& trainer, const Samples& samples) {
  return std::to_string(samples.size()) + " samples, " + std::to_string(trainer.total_steps()) +
         " steps, " + std::to_string(trainer.trained_count()) + " trained numbers";
}

// From the checked plan to the trained model. Throws Error{kCancelled} when a signal came before
// the first step.
int train_plan(Plan& plan) {
  const Config& config = plan.config;
  LoadedModel& model = *plan.model;
  progress::Progress progress(progress::stderr_options(config.log.quiet));
  run::RunFolder folder(config.output.output_path);
  if (config.stage != Stage::kDataProcess) write_config(config);

  std::optional<run::MemoryTimeline> timeline;
  if (!config.memory.report.empty())
    timeline.emplace(config.memory.report, model.device(), model.port());
  const auto phase = [&](const char* name) {
    if (timeline) timeline->begin(name);
  };
  phase("encode");
  Samples samples = samples_of(plan, plan.dataset, config.cache_path);
  if (is_finished(plan, samples, progress)) return 0;
  if (!fill(samples, plan, progress)) return leave();
  std::optional<Samples> validation;
  if (plan.validation != nullptr) {
    validation.emplace(samples_of(plan, plan.validation, config.cache_path + "/validation"));
    if (!fill(*validation, plan, progress)) return leave();
  }
  if (config.stage == Stage::kDataProcess) return 0;
  std::optional<train::Preview> preview;
  if (!plan.prompts.empty()) {
    std::vector<std::string> trained;
    for (const auto& part : model.parts()) {
      if (plan.selection.trains(part.detection.component))
        trained.push_back(part.detection.component);
    }
    const std::string pictures =
        (fs::path(config.output.output_path) / run::kPreviewsName).string();
    preview.emplace(model, plan.prompts, pictures, trained, progress);
    preview->encode_ahead();
  }
  phase("load");
  const std::string denoiser = model.denoiser()->detection.component;
  for (const auto& part : model.parts()) {
    const std::string& name = part.detection.component;
    if (name == denoiser || plan.selection.trains(name)) load(model, name, progress);
  }
  if (plan.starting_weights) plan.starting_weights->load();
  if (plan.preset) plan.preset->load({"preset", config.lora.preset_path, 1.0});

  train::Trainer trainer(
      {model, config, samples, validation ? &*validation : nullptr, preview ? &*preview : nullptr,
       folder, progress, timeline ? &*timeline : nullptr},
      plan.selection);
  if (!config.resume.empty()) {
    run::find_checkpoint(
        config.resume, [&](const std::string& line) { progress.warn(line); },
        [&](const run::Checkpoint& checkpoint) { trainer.resume(checkpoint); });
  }
  progress.note(describe(trainer, samples));
  const int code = trainer.run();
  for (const std::string& line : model.streaming_report()) progress.note(line);
  if (plan.memory) note_measured(*plan.memory, model, progress);
  if (timeline) {
    for (const std::string& file : timeline->write()) progress.note(file);
  }
  return code;
}

// `only`: null to train, otherwise the plan is printed and nothing is trained.
int train_or_plan(std::span<const std::string> arguments, const PlanOnly* only) {
  if (train::is_foreign_line(arguments)) return run_foreign_line(arguments);
  if (flags::wants_help(arguments)) {
    std::fputs(flags::help_text(train_command(family_for_help(arguments))).c_str(), stdout);
    return 0;
  }
  Plan plan = make_plan(arguments, only);
  if (only != nullptr) return print_plan(plan.memory, plan.unplanned, *only);
  const run::StopSignals signals;
  try {
    return train_plan(plan);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled || !run::StopSignals::requested()) throw;
    return leave();
  }
}

}  // namespace

int run_train(std::span<const std::string> arguments) {
  return train_or_plan(arguments, /*only=*/nullptr);
}

int plan_train(std::span<const std::string> arguments, const PlanOnly& only) {
  return train_or_plan(arguments, &only);
}

}  // namespace atelier::cli
