#include "host/check/training.h"

#include <algorithm>
#include <optional>
#include <set>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/check/size_guard.h"
#include "host/data/findings.h"
#include "host/generate/fill_settings.h"
#include "host/generate/settings_checks.h"
#include "host/generate/text_lengths.h"
#include "host/inputs/parse.h"
#include "host/lora/lora_writer.h"
#include "host/model/components.h"
#include "host/model/encoder_check.h"
#include "host/model/media_defaults.h"
#include "host/model/sequence_check.h"
#include "host/model/stages.h"
#include "host/order/output_paths.h"
#include "host/order/preview_prompts.h"
#include "host/parameters/trained.h"
#include "host/plan/plan_run.h"
#include "host/report/text.h"
#include "host/sampling/sigma_schedule.h"
#include "host/train/global_batch.h"
#include "host/train/objective.h"
#include "host/train/row_check.h"
#include "host/train/run_checks.h"

namespace atelier::check {
namespace {

using model::LoadedModel;
using order::Stage;
using order::Training;
using report::Problems;
using train::PreparedRun;

bool trains(const Training& config, std::string_view component) {
  for (const std::string& name : config.trained_names()) {
    if (spec_name(model::component_of(name)) == component) return true;
  }
  return false;
}

// The denoisers that are trained, or beside a control that is.
std::set<std::string_view> trained_denoisers(const ModelFamily& family, const Training& config) {
  std::set<std::string_view> names;
  for (const ComponentSpec& component : family.components()) {
    if (!trains(config, component.name)) continue;
    if (component.role == Role::kDenoiser) names.insert(component.name);
    if (component.role == Role::kControl) names.insert(component.beside);
  }
  return names;
}

// The components that this stage uses; empty: all that the family requires. Of several denoisers
// those that are trained are enough, and where none is, all are used.
std::vector<std::string> needed_components(const ModelFamily& family, const Training& config) {
  if (!config.previews.prompts_file.empty()) return {};
  const std::set<std::string_view> trained = trained_denoisers(family, config);
  const auto is_used = [&](const ComponentSpec& component) {
    if (config.stage == Stage::kDataProcess)
      return component.required && model::encodes(family, component);
    if (trains(config, component.name)) return true;
    if (component.role == Role::kDenoiser)
      return trained.empty() ? component.required : trained.contains(component.name);
    if (component.role == Role::kControl)
      return component.required && (trained.empty() || trained.contains(component.beside));
    return config.stage == Stage::kBoth && component.required;
  };
  std::vector<std::string> names;
  for (const ComponentSpec& component : family.components()) {
    if (is_used(component)) names.emplace_back(component.name);
  }
  return names;
}

// Fills a PreparedRun step by step. What is wrong becomes problems, and the rest is checked all the
// same.
class Preparation {
 public:
  Preparation(Training order, progress::Progress& progress, Problems& problems)
      : family_(*order.family),
        progress_(progress),
        problems_(problems),
        run_{.config = std::move(order)} {
    config_.model.components = needed_components(family_, config_);
    config_.model.placement.denoisers_take_turns = trained_denoisers(family_, config_).size() > 1;
  }

  PreparedRun for_training() {
    for (const std::string& note : train::fit_to_ranks(config_, problems_)) progress_.note(note);
    train::check_output_folder(config_, problems_);
    train::check_cache_folder(config_, problems_);
    check_training(/*guards_sizes=*/true);
    return std::move(run_);
  }

  PreparedRun for_planning(bool guards_sizes) {
    train::share_batch(config_, /*processes=*/1, problems_);
    check_training(guards_sizes);
    return std::move(run_);
  }

  PreparedRun for_encoding() {
    train::check_cache_folder(config_, problems_);
    open_model();
    if (run_.model) note_model();
    config_.validation = {};
    open_datasets();
    if (run_.model && run_.dataset) {
      problems_.collect([&] {
        const SizeGuard sizes(*run_.model, limits());
        sizes.check(*run_.dataset, problems_);
        if (!sizes.unchecked().empty())
          progress_.warn("warning: sizes are not checked beforehand: " + sizes.unchecked());
      });
    }
    finish();
    if (run_.model) plan::apply_limits(limits(), run_.model->device());
    return std::move(run_);
  }

 private:
  const model::MemoryLimits& limits() const { return config_.memory.limits; }

  void check_training(bool guards_sizes) {
    open_model();
    if (run_.model && !limits().device_profile) note_places();
    if (run_.model && config_.stage != Stage::kDataProcess && has_denoiser()) check_trained();
    open_datasets();
    check_cached_stages();
    if (run_.model && guards_sizes) sizes_.emplace(*run_.model, limits());
    read_prompts();
    check_sizes();
    check_resumed();
    finish();
    if (sizes_) run_.unchecked = sizes_->unchecked();
  }

  // Without its files, the declarations of the model are there for the other checks.
  void open_model() {
    run_.layout = parameters::unplanned_layout(config_);
    problems_.collect([&] { run_.model = LoadedModel::open(family_, config_.model); });
    if (run_.model) note_order();
    if (run_.model) check_sequence();
    if (!run_.model) without_files_ = LoadedModel::open_empty(family_);
    if (run_.model) lengths_.emplace(run_.model->model(), config_.model.cuts_texts);
  }

  void note_order() {
    const std::string order = model::told_by_order(family_, run_.model->parts());
    if (!order.empty()) progress_.note("note: " + order);
  }

  void check_sequence() {
    model::check_sequence(*run_.model, config_.sequence_parallel, config_.process.attention,
                          problems_);
  }

  const model::Stages& stages() const {
    return (run_.model ? *run_.model : *without_files_).stages();
  }

  bool has_denoiser() {
    if (stages().first() != nullptr) return true;
    problems_.add("there is no denoiser to train with",
                  "pass its files with --model_paths or --model_id_with_origin_paths",
                  ErrorCode::kNotFound);
    return false;
  }

  void note_model() {
    for (const std::string& note : run_.model->notes()) progress_.note("note: " + note);
  }

  // What the user should know about places on this machine.
  void note_places() {
    note_model();
    const bool is_asked = config_.offload.weights || config_.offload.optimizer;
    if (is_asked && run_.model->device().is_cpu() && !run_.model->is_simulated())
      progress_.note(
          "note: --cpu_offload and --optimize_on_cpu have no effect on the CPU: weights and the "
          "optimizer's state are in host memory anyway");
  }

  // What is trained, and what it begins with.
  void check_trained() {
    LoadedModel& model = *run_.model;
    run_.selection = parameters::select_trained(model, config_, problems_);
    check_places();
    plan::place_trained(run_);
    open_preset();
    if (!config_.lora.base_models.empty()) {
      if (const auto warning = formats::lora_spelling(config_.lora.format).warning;
          !warning.empty())
        progress_.warn("warning: " + std::string(warning));
    }
    if (!config_.lora.checkpoint.empty() && !config_.lora.base_models.empty())
      problems_.collect([&] {
        parameters::check_lora_checkpoint(model, run_.selection, config_.lora, problems_);
      });
    const auto is_trained_in_half = [&](const model::LoadedPart& part) {
      const std::string& component = part.detection.component;
      return model.dtype(component) == at::kHalf && run_.selection.trains(component);
    };
    if (model.dtype() == at::kHalf || std::ranges::any_of(model.parts(), is_trained_in_half))
      problems_.add("--dtype: gradients of float16 vanish without a scaled loss",
                    "use bfloat16 or float32", ErrorCode::kUnsupported);
    open_starting_weights();
    problems_.collect([&] {
      train::timesteps_of(model, config_.timesteps,
                          parameters::running_denoisers(model, run_.selection));
    });
    check_distilled_levels();
  }

  // Files are not changed, so what is trained cannot rest in them.
  void check_places() {
    for (const auto& [component, place] : config_.model.placement.offload) {
      const bool is_trained = std::ranges::any_of(run_.selection.weights, [&](const auto& trained) {
        return trained.component == component;
      });
      if (place == memory::Place::kDisk && is_trained)
        problems_.add(
            "--offload " + component + "=disk: its weights are trained, files are not changed",
            "use " + component + "=host");
    }
  }

  // Direct distillation goes through all noise levels, so every denoiser has to take part.
  void check_distilled_levels() {
    if (config_.task != order::Task::kDirectDistill) return;
    const auto denoisers = parameters::running_denoisers(*run_.model, run_.selection);
    const double high = denoisers.front().range.high, low = denoisers.back().range.low;
    if (low <= 0.0 && high >= 1.0) return;
    problems_.add(
        "--task direct_distill: goes through noise levels from 1 to 0, and the denoisers "
        "that are trained have those from " +
            report::number_text(high) + " to " + report::number_text(low),
        "name every denoiser in --lora_base_model or --trainable_models");
  }

  // The LoRA that is part of the frozen model.
  void open_preset() {
    const order::LoraSettings& lora = config_.lora;
    if (lora.preset_path.empty() || lora.preset_model.empty()) return;
    if (!parameters::running_components(*run_.model, run_.selection).contains(lora.preset_model)) {
      problems_.add("--preset_lora_model: " + lora.preset_model + " does not run in a step",
                    "name a denoiser that does, or a component that is trained");
      return;
    }
    for (const auto& trained : run_.selection.weights) {
      if (trained.component != lora.preset_model || !run_.model->is_streamed(*trained.weight) ||
          run_.model->is_divided(lora.preset_model))
        continue;
      problems_.add("--preset_lora_model: weights of " + lora.preset_model +
                        " are trained and rest on the host: nothing can be added to them",
                    "leave out --optimize_on_cpu and --offload", ErrorCode::kUnsupported);
      return;
    }
    problems_.collect([&] {
      run_.preset = std::make_unique<lora::Registry>(*run_.model);
      const lora::LoraRef use = {
          .name = "preset", .path = lora.preset_path, .component = lora.preset_model};
      try {
        run_.preset->check(use);
      } catch (const Error& error) {
        throw error.at("--preset_lora_path, for --preset_lora_model " + lora.preset_model);
      }
      if (run_.preset->fingerprint(std::span(&use, 1), lora.preset_model).empty())
        problems_.add(
            "--preset_lora_path: " + lora.preset_path + " changes nothing in " + lora.preset_model,
            "name its component with --preset_lora_model");
    });
  }

  // Weights that are not trained are not in checkpoints: the run that is resumed would lose them.
  void open_starting_weights() {
    const std::string& file = config_.resume_from_checkpoint;
    if (file.empty()) return;
    problems_.collect([&] {
      run_.starting_weights.emplace(*run_.model, file, config_.model.hints);
      const std::string& component = run_.starting_weights->component();
      const auto& names = config_.trainable_models;
      if (std::find(names.begin(), names.end(), component) == names.end())
        problems_.add(
            "--resume_from_checkpoint: " + file + ": " + component + " is not trained as a whole",
            "give the file to --model_paths in place of the model's own");
    });
  }

  void open_datasets() {
    if (!has_variant()) return;
    data::DatasetOptions options = config_.dataset;
    fill_clips(options.clips);
    if (!options.dataset_base_path.empty())
      run_.dataset = open_dataset(options, /*is_trained_on=*/true);
    if (run_.dataset != nullptr && !run_.dataset->items().empty())
      problems_.collect(
          [&] { data::Order::check(static_cast<size_t>(run_.dataset->samples()), config_.order); });
    check_encoders();
    if (config_.validation.base_path.empty()) return;
    options.dataset_base_path = config_.validation.base_path;
    options.dataset_metadata_path = config_.validation.metadata_path;
    options.control_path = config_.validation.control_path;
    options.control_flag = "--validation_control_path";
    if (run_.dataset) options.extra_inputs = run_.dataset->options().extra_inputs;
    run_.validation = open_dataset(options, /*is_trained_on=*/false);
  }

  // Encoding ahead needs no denoiser. But without one nothing tells variants apart.
  bool has_variant() {
    if (config_.stage != Stage::kDataProcess || !run_.model || !stages().variant.empty() ||
        !model::encodes_by_variant(family_))
      return true;
    problems_.add(
        "--model_paths: there is no denoiser, whose variant says what is encoded",
        "add its files, of which headers alone are read then, or name the variant: --model_hints "
        R"('{"*": {"variant": "NAME"}}')");
    return false;
  }

  // A denoiser to ask about; without one it is the family's usual one, as the variant that is
  // named.
  std::optional<Detection> denoiser() const {
    if (stages().first() != nullptr) return stages().first()->part;
    for (Detection& usual : family_.tiny_parts()) {
      if (!model::has_role(family_, usual.component, Role::kDenoiser)) continue;
      if (!stages().variant.empty()) usual.variant = stages().variant;
      return usual;
    }
    return std::nullopt;
  }

  // Length and rate of clips where the user does not say them.
  void fill_clips(data::ClipOptions& clips) const {
    const std::optional<Detection> asked = denoiser();
    if (!asked) return;
    const bool has_denoiser = run_.model && run_.model->stages().first() != nullptr;
    const MediaDefaults media =
        has_denoiser ? model::media_defaults(*run_.model) : family_.media_defaults(*asked);
    clips.model_fps = media.fps;
    clips.model_frames = media.target.frames;
    clips.seed = config_.seed;
  }

  std::shared_ptr<const data::Dataset> open_dataset(const data::DatasetOptions& options,
                                                    bool is_trained_on) {
    data::RowCheck check;
    if (lengths_) check = train::row_check(config_, *run_.model, *lengths_, is_trained_on);
    model::LoadedModel& model = run_.model ? *run_.model : *without_files_;
    LatentSpec spec = model.model().latent_spec();
    if (!run_.model) spec.takes_clips = true;  // as far as is known
    std::optional<std::string_view> variant;
    if (run_.model) variant = stages().variant;
    std::shared_ptr<const data::Dataset> dataset;
    problems_.collect([&] {
      dataset = std::make_shared<const data::Dataset>(
          data::Dataset::open(options, family_.inputs(), spec, problems_, check, variant));
      for (const std::string& warning : dataset->warnings()) progress_.warn("warning: " + warning);
    });
    if (dataset != nullptr && run_.model && config_.stage != Stage::kTrain)
      check_rows(*dataset, model.model(), options);
    return dataset;
  }

  // What the model says of the inputs of each row, before any is encoded.
  void check_rows(const data::Dataset& dataset, const Model& model,
                  const data::DatasetOptions& options) {
    data::Findings errors(options.max_errors);
    for (size_t i = 0; i < dataset.items().size(); ++i) {
      const data::Item& item = dataset.items()[i];
      try {
        model.target(dataset.shapes(i), item.target);
      } catch (const Error& error) {
        errors.add("rows that the model cannot take", error.at(item.place));
      }
    }
    for (const Error& error : errors.list(options.dataset_metadata_path)) problems_.add(error);
  }

  // Whether what encodes the rows is there, which training from a cache does without, and the
  // controls that run with them, which encoding does without.
  void check_encoders() {
    if (run_.dataset == nullptr || run_.model == nullptr) return;
    for (const InputSpec& input : run_.dataset->inputs()) {
      std::optional<Error> error;
      if (config_.stage != Stage::kTrain) error = model::missing_encoder(*run_.model, input.name);
      if (!error && config_.stage != Stage::kDataProcess)
        error = model::missing_control(*run_.model, input.name);
      if (error) problems_.add(error->at("input " + formats::quote_and_escape(input.name)));
    }
  }

  void check_cached_stages() {
    const samples::CachedStages cached =
        samples::cached_stages(family_, stages().encoding, config_.trained_names());
    if (run_.dataset == nullptr && config_.dataset.dataset_base_path.empty() &&
        !samples::are_all_cached(cached))
      problems_.add("--dataset_base_path: a cache alone does not do where an encoder is trained",
                    "give the dataset");
  }

  // The prompts of images on the way.
  void read_prompts() {
    const std::string& file = config_.previews.prompts_file;
    if (file.empty()) return;
    order::Settings base;
    // How many pictures a result has, each line says with inputs of its own.
    const bool are_pictures = run_.model && model::media_defaults(*run_.model).frames_are_pictures;
    problems_.collect([&] {
      if (const auto size = order::preview_target(config_, run_.dataset.get())) {
        if (!are_pictures) base.num_frames = size->frames;
        base.height = size->height;
        base.width = size->width;
      }
    });
    for (const InputSpec& input : family_.inputs()) {
      const auto said = config_.dataset.texts_of_all.find(input.name);
      if (input.kind == InputKind::kFlag && input.use == InputUse::kBoth &&
          said != config_.dataset.texts_of_all.end())
        base.family_inputs[said->first] = inputs::parse_value(input, said->second);
    }
    const size_t before = problems_.size();
    problems_.collect([&] {
      if (run_.model) generate::fill_target(base, *run_.model);
    });
    if (problems_.size() > before) return;
    if (are_pictures) base.num_frames.reset();
    for (order::Job& job : order::read_sample_prompts(file, base, family_.inputs(), problems_))
      check_prompt(job);
  }

  void check_prompt(order::Job& job) {
    if (!generate::check_said_target(job.settings, job.place, problems_)) return;
    const size_t before = problems_.size();
    problems_.collect([&] {
      if (!run_.model) return;
      generate::fill_target(job.settings, *run_.model, job.place);
      generate::fill_from_folder(job.settings, *run_.model);
    });
    const auto variant = run_.model ? run_.model->stages().variant : std::string_view();
    generate::check_settings(job.settings, &family_, job.place, problems_, variant);
    if (!run_.model) return;
    generate::check_against_model(job.settings, family_, run_.model->model(), variant, job.place,
                                  problems_);
    generate::check_form(job.settings, *run_.model, job.place, problems_);
    generate::check_encoders(job.settings, *run_.model, job.place, problems_);
    lengths_->check(job.settings, family_, variant, job.place, problems_);
    if (job.settings.num_frames.value_or(1) > 1 &&
        !model::media_defaults(*run_.model).frames_are_pictures)
      order::check_rate(job.settings, media::preferred_clip_format(), job.place, problems_);
    if (sizes_ && problems_.size() == before)
      sizes_->check(job.settings, job.place, std::nullopt, /*may_tile=*/false, problems_);
    run_.prompts.push_back(job.settings);
  }

  void check_sizes() {
    const bool trains_without_denoiser =
        config_.stage != Stage::kDataProcess && stages().first() == nullptr;
    if (!sizes_ || trains_without_denoiser) return;
    if (run_.dataset) sizes_->check(*run_.dataset, config_, run_.selection, problems_);
    if (run_.validation) sizes_->check(*run_.validation, problems_);
  }

  void check_resumed() {
    if (config_.resume.empty() || !problems_.empty()) return;
    problems_.collect([&] {
      run_.resumed = run::find_state(config_.resume, [](const std::string&) {});
      if (config_.stage != Stage::kDataProcess)
        train::check_resume(*run_.resumed, *run_.model, run_.selection, config_, problems_);
    });
  }

  void finish() {
    problems_.throw_if_any();
    if (const std::string note = lengths_->note(); !note.empty()) progress_.note("note: " + note);
  }

  const ModelFamily& family_;
  progress::Progress& progress_;
  Problems& problems_;
  PreparedRun run_;
  Training& config_ = run_.config;
  std::unique_ptr<LoadedModel> without_files_;  // where the model's own cannot be opened
  std::optional<generate::TextLengths> lengths_;
  std::optional<SizeGuard> sizes_;
};

}  // namespace

PreparedRun open_training(Training order, progress::Progress& progress, Problems& problems) {
  return Preparation(std::move(order), progress, problems).for_training();
}

PreparedRun open_planned(Training order, bool guards_sizes, progress::Progress& progress,
                         Problems& problems) {
  return Preparation(std::move(order), progress, problems).for_planning(guards_sizes);
}

PreparedRun open_encoding(Training order, progress::Progress& progress, Problems& problems) {
  order.previews = {};  // none are made
  order.memory.limits.allowed_storages = {};
  return Preparation(std::move(order), progress, problems).for_encoding();
}

}  // namespace atelier::check
