#include "host/train/training_run.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>

#include "atelier/error.h"

#include "host/distributed/sequence.h"
#include "host/distributed/slab_group.h"
#include "host/files/safetensors_writer.h"
#include "host/model/memory_holders.h"
#include "host/model/stages.h"
#include "host/run/stop.h"
#include "host/train/preview.h"
#include "host/train/run_checks.h"
#include "host/train/trainer.h"

namespace atelier::train {
namespace {

using order::Stage;
using order::Training;
using samples::Samples;
using samples::Share;

namespace fs = std::filesystem;
using progress::Progress;

RunEnd stopped() {
  return {.exit_code =
              run::StopSignals::exit_code(run::StopSignals::requested().value_or(SIGTERM))};
}

// The steps of one run, in order.
class TrainingRun {
 public:
  TrainingRun(PreparedRun& run, run::MemoryTimeline* timeline, Progress& progress,
              distributed::Group* group)
      : run_(run),
        config_(run.config),
        model_(*run.model),
        timeline_(timeline),
        progress_(progress),
        group_(group) {
    if (!writes()) return;
    folder_.emplace(config_.output.output_path);
    if (config_.stage != Stage::kDataProcess)
      files::write_file(file_in_folder(run::kConfigName), config_.effective_toml);
  }

  RunEnd run() {
    begin("encode");
    Samples samples = open_samples(run_, run_.dataset, config_.cache_path);
    if (is_finished(samples)) return {};
    if (!fill(samples, run_.dataset, config_.cache_path)) return stopped();
    std::optional<Samples> validation;
    if (run_.validation != nullptr) {
      const std::string folder = config_.cache_path + "/validation";
      validation.emplace(open_samples(run_, run_.validation, folder));
      if (!fill(*validation, run_.validation, folder)) return stopped();
    }
    if (config_.stage == Stage::kDataProcess) return {};
    make_preview();
    begin("load");
    load_components();
    return train(samples, validation ? &*validation : nullptr);
  }

 private:
  // Whether this process writes files, and shows images: one of a run does.
  bool writes() const { return group_ == nullptr || group_->is_first(); }

  void begin(const char* phase) {
    if (timeline_ != nullptr) timeline_->begin(phase);
  }
  std::string file_in_folder(std::string_view name) const {
    return (fs::path(config_.output.output_path) / name).string();
  }

  // Whether the checkpoint that is resumed is the end of its run, with its weights beside it.
  bool is_finished(const Samples& samples) {
    if (!run_.resumed) return false;
    const int64_t step = run_.resumed->step, total = count_steps(samples, config_);
    if (step < total) return false;
    progress_.warn(
        "the run is finished: step " + std::to_string(step) + " of " + std::to_string(total) +
        "; to go on, give " +
        (config_.max_train_steps
             ? "a larger --max_train_steps than " + std::to_string(*config_.max_train_steps)
             : "a larger --num_epochs than " + std::to_string(config_.num_epochs)));
    return find_weights_to_write(*run_.resumed, run_.selection, config_).empty();
  }

  // Encodes what is not there; false when a signal ended it.
  bool fill(Samples& samples, const std::shared_ptr<const data::Dataset>& dataset,
            const std::string& folder) {
    if (config_.stage != Stage::kTrain)
      return fill_samples(run_, samples, dataset, folder, progress_, group_);
    if (samples.missing() == 0) return true;
    throw Error(ErrorCode::kNotFound,
                config_.cache_path + ": " + std::to_string(samples.missing()) +
                    " entries are not there or not of these rows",
                "run the task sft:data_process again, or sft, which does both", "CACHE_INCOMPLETE");
  }

  void make_preview() {
    if (run_.prompts.empty()) return;
    PreviewShare share = {.in_lockstep = in_lockstep()};
    if (group_ != nullptr && !share.in_lockstep) {
      share.first = static_cast<size_t>(group_->rank());
      share.stride = static_cast<size_t>(group_->size());
    }
    const bool draws_for_others = share.in_lockstep && !writes();
    preview_.emplace(model_, run_.prompts,
                     draws_for_others ? std::string() : file_in_folder(run::kPreviewsName),
                     parameters::running_components(model_, run_.selection), progress_, share);
    preview_->encode_ahead();
  }

  // Whether blocks are divided among the processes, see RunContext::in_lockstep().
  bool in_lockstep() const {
    return group_ != nullptr && config_.model.placement.denoiser_shards > 1;
  }

  // Blocks are gathered by a group of their own, beside what else is exchanged.
  void meet_peers() {
    group_->gather_texts("encoded");
    blocks_ = group_->neighbours(config_.model.placement.denoiser_shards, "blocks");
    model_.meet(distributed::divide_slabs(blocks_));
  }

  lora::LoraRef preset() const {
    return {
        .name = "preset", .path = config_.lora.preset_path, .component = config_.lora.preset_model};
  }

  // Where blocks are trained and divided, the preset becomes a part before they are divided.
  void merge_preset() {
    const std::string& component = config_.lora.preset_model;
    if (!run_.preset || !model_.is_divided(component)) return;
    std::set<Weight*> trained;
    for (const auto& one : run_.selection.weights) {
      if (one.component == component) trained.insert(one.weight);
    }
    model_.change_divided(component, [this, trained](Block& block) {
      std::set<Weight*> own;
      block.visit_weights([&](const std::string&, Weight& weight) {
        if (trained.contains(&weight)) own.insert(&weight);
      });
      if (!own.empty()) run_.preset->merge(preset(), own);
    });
  }

  void load_components() {
    if (in_lockstep()) meet_peers();
    merge_preset();
    const std::set<std::string> components = parameters::running_components(model_, run_.selection);
    const auto stop_if_asked = [] {
      if (run::StopSignals::is_requested())
        throw Error(ErrorCode::kCancelled, "stopped by a signal");
    };
    for (const auto& part : model_.parts()) {  // in the order of the files
      const std::string& component = part.detection.component;
      const bool is_replaced =
          run_.starting_weights && run_.starting_weights->component() == component;
      if (is_replaced || !components.contains(component) || model_.is_loaded(component)) continue;
      model::load_shown(model_, component, progress_, stop_if_asked);
    }
    if (run_.starting_weights) run_.starting_weights->load(progress_, stop_if_asked);
    if (run_.preset) run_.preset->load(preset());
    if (group_)
      group_->gather_texts("loaded");  // exchanges have a time-out, and files of one may be slow
  }

  RunEnd train(const Samples& samples, const Samples* validation) {
    const std::shared_ptr<SequenceGroup> sequence =
        group_ ? distributed::make_sequence(*group_, config_.sequence_parallel) : nullptr;
    Trainer trainer({model_, config_, run_.layout, samples, validation,
                     preview_ ? &*preview_ : nullptr, folder_ ? &*folder_ : nullptr, progress_,
                     timeline_, group_, blocks_.get(), sequence.get()},
                    run_.selection);
    if (!config_.resume.empty()) {
      run::find_state(
          config_.resume, [&](const std::string& line) { progress_.warn(line); },
          [&](const run::SavedState& saved_state) { trainer.resume(saved_state); });
    }
    progress_.note(std::to_string(samples.size()) + " samples, " +
                   std::to_string(trainer.total_steps()) + " steps, " +
                   std::to_string(trainer.trained_count()) + " trained numbers");
    if (model_.transfer() != nullptr) {
      const std::string problem = model::PinningProblem().news(model_.transfer()->stats());
      if (!problem.empty()) progress_.warn(problem);
    }
    return {.exit_code = trainer.run(), .has_trained = true};
  }

  PreparedRun& run_;
  const Training& config_;
  model::LoadedModel& model_;
  run::MemoryTimeline* timeline_;  // null: none
  Progress& progress_;
  distributed::Group* group_;                   // null: this process is alone
  std::shared_ptr<distributed::Group> blocks_;  // see RunContext; null until they have met
  std::optional<run::RunFolder> folder_;        // nullopt: another process writes
  std::optional<Preview> preview_;
};

}  // namespace

bool fill_samples(PreparedRun& run, Samples& samples,
                  const std::shared_ptr<const data::Dataset>& dataset, const std::string& folder,
                  Progress& progress, distributed::Group* group) {
  const auto fill = [&](const Share& share) {
    return samples.fill(*run.model, run.config.dataset_num_workers, progress,
                        run::StopSignals::is_requested, share);
  };
  if (group == nullptr) return fill({});
  group->gather_texts("opened");  // all of them miss the same entries
  if (samples.missing() > 0) {
    const bool is_done = fill({.rank = group->rank(), .size = group->size()});
    const std::vector<std::string> stopped = group->gather_texts(is_done ? "" : "stopped");
    if (!std::ranges::all_of(stopped, &std::string::empty)) return false;
    samples = open_samples(run, dataset, folder);
  }
  return !group->is_first() || fill({});
}

RunEnd run_training(PreparedRun& run, run::MemoryTimeline* timeline, Progress& progress,
                    distributed::Group* group) {
  try {
    return TrainingRun(run, timeline, progress, group).run();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled || !run::StopSignals::is_requested()) throw;
    return stopped();
  }
}

Samples open_samples(const PreparedRun& run, const std::shared_ptr<const data::Dataset>& dataset,
                     const std::string& folder) {
  const bool drops_captions = run.config.caption_dropout_rate > 0;
  if (dataset == nullptr) return Samples::of_cache(folder, *run.model, drops_captions);
  return Samples::of_dataset(
      dataset, *run.model,
      samples::cached_stages(run.model->family(), run.model->stages().encoding,
                             run.config.trained_names()),
      folder, drops_captions);
}

}  // namespace atelier::train
