#include "host/plan/plan_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <ATen/DeviceAccelerator.h>

#include "atelier/error.h"

#include "host/generate/request.h"
#include "host/inputs/parse.h"
#include "host/lora/targets.h"
#include "host/model/stages.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "host/samples/cache_manifest.h"
#include "host/samples/encoding_store.h"
#include "host/train/objective.h"

namespace atelier::plan {
namespace {

using model::LoadedModel;
using order::Job;
using order::Settings;

double pixels_of(const MediaTarget& target) {
  return static_cast<double>(target.frames) * static_cast<double>(target.height) *
         static_cast<double>(target.width);
}

// Images that lead what is made count as much as it does: families bring them to about its size.
bool is_leading_image(const InputSpec& input) {
  return input.kind == InputKind::kImage && input.role == InputRole::kCondition;
}

// Pixels that one sample stands for.
double pixels_of(const Settings& settings, const LoadedModel& model) {
  size_t images = 0;
  for (const InputSpec& input : model.family().inputs()) {
    const auto given = settings.family_inputs.find(input.name);
    if (is_leading_image(input) && given != settings.family_inputs.end())
      images += inputs::texts_of(*given).size();
  }
  return pixels_of(order::target_of(settings)) * static_cast<double>(1 + images);
}
double pixels_of(const data::Item& item, std::span<const InputSpec> inputs) {
  size_t images = 0;
  for (const InputSpec& input : inputs) {
    const auto given = item.files.find(input.name);
    if (is_leading_image(input) && given != item.files.end()) images += given->second.size();
  }
  return pixels_of(item.target) * static_cast<double>(1 + images);
}

// Pixels that are denoised at once.
double area_of(const Settings& settings, const LoadedModel& model) {
  const bool is_guided =
      generate::cfg_scales_of(settings, model.family(), model.stages().variant).is_guided();
  return (is_guided ? 2.0 : 1.0) * pixels_of(settings, model) *
         static_cast<double>(
             std::min(settings.batch_size, std::max<int64_t>(1, settings.num_images)));
}

int64_t lora_bytes(const LoadedModel& model, std::span<const Job> jobs) {
  int64_t most = 0;
  for (const Job& job : jobs) {
    int64_t bytes = 0;
    for (const lora::LoraRef& use : job.settings.loras) {
      std::error_code failure;
      const auto size = std::filesystem::file_size(use.path, failure);
      const size_t copies =
          use.component == lora::kEveryDenoiser ? model.stages().denoisers.size() : size_t{1};
      if (!failure) bytes += static_cast<int64_t>(size * copies);
    }
    // Several are stacked for the layers that share them, beside each one's own.
    most = std::max(most, job.settings.loras.size() > 1 ? 2 * bytes : bytes);
  }
  return most;
}

const Job& largest_job(const LoadedModel& model, std::span<const Job> jobs) {
  return *std::ranges::max_element(jobs, {},
                                   [&](const Job& job) { return area_of(job.settings, model); });
}

GenerationBasis basis_of(LoadedModel& model, const order::Generation& order,
                         std::span<const Job> jobs, const Job& largest) {
  const Job& longest = *std::ranges::max_element(
      jobs, {}, [](const Job& job) { return job.settings.prompt.value_or("").size(); });
  GenerationBasis basis{.order = &order,
                        .request = generate::blank_request(largest.settings, model),
                        .images = 0,
                        .lora_bytes = lora_bytes(model, jobs),
                        .layout = generate::unplanned_layout(order, model)};
  basis.request.inputs["prompt"] = longest.settings.prompt.value_or("");
  basis.request.tiling = order.tiling();
  for (const Job& job : jobs) basis.images += std::max<int64_t>(1, job.settings.num_images);
  return basis;
}

// Runs `make`. Where the limit is the device's own, a model that cannot run dry is no mistake.
template <typename F>
Outcome plan_unless_impossible(const MemoryLimits& limits, const F& make) {
  try {
    return {.planned = make()};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kOutOfMemory || limits.is_given()) throw;
    return {.unplanned = error.what()};
  }
}

// Components whose own weights are not trained.
std::vector<std::string> untrained(const LoadedModel& model,
                                   const parameters::Selection& selection) {
  std::vector<std::string> names;
  for (const model::LoadedPart& part : model.parts()) {
    const std::string& name = part.detection.component;
    if (std::none_of(selection.weights.begin(), selection.weights.end(),
                     [&](const auto& trained) { return trained.component == name; }))
      names.push_back(name);
  }
  return names;
}

Alternative tiled(LoadedModel& model, const GenerationBasis& basis, const PlanBasis& plan_basis) {
  return {"--tiled", [&] {
            GenerationBasis changed = basis;
            changed.request.tiling = order::Tiling();
            return size_generation(model, changed, plan_basis);
          }};
}

// All components beside each other, with the most that any phase computes with; nullopt when some
// are streamed.
std::optional<int64_t> bytes_of_everything(const Planned& planned) {
  int64_t bytes = planned.target.basis.profile.reserve_bytes, most = 0;
  for (const memory::ComponentChoice& choice : planned.plan.components) {
    if (choice.resident < choice.num_blocks) return std::nullopt;
    bytes += choice.device_bytes;
  }
  for (size_t i = 0; i < planned.plan.phases.size(); ++i) {
    const auto& strategies = planned.sized.run.phases[i].strategies;
    most = std::max(most, strategies[planned.plan.phases[i].strategy].device_bytes);
  }
  return bytes + most;
}

// Whether all components have room beside each other, so that none needs to leave for another.
bool everything_stays(const Planned& planned) {
  const std::optional<int64_t> bytes = bytes_of_everything(planned);
  return bytes && *bytes <= within(planned.target.limits).device_bytes;
}

}  // namespace

Outcome plan_generation(LoadedModel& model, const order::Generation& order,
                        std::span<const Job> jobs) {
  PlanTarget target = plan_target(order.limits, *order.load, model);
  target.basis.prefetch = order.prefetch;
  if (!target.has_limit) return {};
  return plan_unless_impossible(order.limits, [&] {
    const Job& largest = largest_job(model, jobs);
    const GenerationBasis basis = basis_of(model, order, jobs, largest);
    std::vector<Alternative> alternatives = storage_alternatives(
        model, *order.load, untrained(model, {}),
        [&](LoadedModel& changed) { return size_generation(changed, basis, target.basis); });
    if (!basis.request.tiling) alternatives.push_back(tiled(model, basis, target.basis));
    Planned planned;
    try {
      planned = plan_or_refuse(size_generation(model, basis, target.basis), target, alternatives);
    } catch (const Error& error) {
      if (jobs.size() == 1) throw;
      throw error.at(order::size_origin(largest.settings, largest.place));
    }
    const bool has_more = jobs.size() > 1 || order.has_later_jobs();
    if (has_more && everything_stays(planned))
      planned.plan.device_bytes = *bytes_of_everything(planned);
    return planned;
  });
}

generate::Layout layout_of(const order::Generation& order, const LoadedModel& model,
                           const std::optional<Planned>& planned) {
  if (!planned) return generate::unplanned_layout(order, model);
  size_t strategy = 0;  // the last one takes least, and so fits all denoisers
  for (const memory::PhaseChoice& phase : planned->plan.phases) {
    if (phase.name.starts_with("denoise")) strategy = std::max(strategy, phase.strategy);
  }
  generate::Layout layout = planned->sized.layouts.at(strategy);
  layout.weights = planned_weights(planned->plan, *order.load);
  layout.keeps_all = order.has_several_jobs() && everything_stays(*planned);
  return layout;
}

namespace {

// The largest image, the longest text and how many there are.
void take_dataset(TrainingBasis& basis, const data::Dataset& dataset, const LoadedModel& model) {
  double most = 0;
  size_t longest = 0;
  std::optional<size_t> largest;
  std::optional<std::string> text;
  for (size_t i = 0; i < dataset.items().size(); ++i) {
    const data::Item& item = dataset.items()[i];
    basis.distillation_steps =
        std::max(basis.distillation_steps, train::distillation_steps(item.values));
    if (const double pixels = pixels_of(item, dataset.inputs()); pixels > most) {
      most = pixels;
      basis.target = item.target;
      largest = i;
    }
    const auto prompt = item.values.find("prompt");
    if (prompt == item.values.end() || !prompt->second.is_string()) continue;
    const auto& caption = prompt->second.get_ref<const std::string&>();
    if (text && caption.size() <= longest) continue;
    longest = caption.size();
    text = caption;
  }
  if (largest) basis.inputs = dataset.shapes(*largest);
  basis.samples = std::max<int64_t>(1, dataset.samples());
  const bool has_encoder =
      std::any_of(model.family().components().begin(), model.family().components().end(),
                  [&](const ComponentSpec& spec) {
                    return model::only_encodes(spec) && model.find_part(spec.name) != nullptr;
                  });
  if (!has_encoder) {
    basis.inputs.erase("prompt");
  } else if (text) {
    basis.inputs.insert_or_assign("prompt", *text);
  }
}

// What a stage has made of a sample, without values; empty: nothing, or it cannot be read, which
// training tells.
Conditioning cached_shapes(const samples::EncodingStore& store, const EncodeStage& stage,
                           const samples::CacheItem& item, at::ScalarType dtype) {
  Conditioning made;
  const auto key = item.keys.find(stage.name);
  if (key == item.keys.end()) return made;
  const auto shapes = store.find(stage.name, key->second);
  if (!shapes) return made;
  for (const auto& [name, shape] : *shapes)
    made.emplace(name, at::empty(shape, at::TensorOptions(at::kMeta).dtype(dtype)));
  return made;
}

double numbers_of(const Conditioning& made) {
  double numbers = 0;
  for (const auto& [name, tensor] : made) numbers += static_cast<double>(tensor.numel());
  return numbers;
}

// The largest of the samples that are there already, with the longest text of each stage that reads
// one, and how many.
void take_cache(TrainingBasis& basis, const std::string& folder, const LoadedModel& model) {
  const samples::Manifest manifest = samples::Manifest::read(folder);
  const samples::EncodingStore store(folder);
  double most = 0;
  std::map<std::string_view, Conditioning> texts;  // by stage
  Conditioning others;
  for (const samples::CacheItem& item : manifest.items) {
    basis.distillation_steps =
        std::max(basis.distillation_steps, train::distillation_steps(item.values));
    Conditioning made;
    for (const EncodeStage& stage : model.stages().encoding) {
      if (model.stages().is_target(stage)) continue;
      Conditioning part = cached_shapes(store, stage, item, model.dtype());
      if (!model::is_prompted(stage)) {
        made.merge(part);
      } else if (Conditioning& text = texts[stage.name]; numbers_of(part) > numbers_of(text)) {
        text = std::move(part);
      }
    }
    const double latents = item.latents_shape.empty()
                               ? pixels_of(item.target)
                               : static_cast<double>(c10::multiply_integers(item.latents_shape));
    if (latents + numbers_of(made) <= most) continue;
    most = latents + numbers_of(made);
    basis.target = item.target;
    others = std::move(made);
  }
  for (auto& [stage, text] : texts) basis.encoded.merge(text);
  if (!basis.encoded.empty()) basis.encoded.merge(others);
  basis.samples = std::max<int64_t>(
      1, std::ranges::count(manifest.items, false, &samples::CacheItem::is_alternative));
}

// The steps of a whole run, however many they are.
double count_steps(const order::Training& config, int64_t samples) {
  const data::OrderOptions& order = config.order;
  const double in_a_step =
      std::max(1.0, static_cast<double>(order.batch_size) *
                        static_cast<double>(order.gradient_accumulation_steps));
  const double seen = static_cast<double>(samples) * static_cast<double>(order.dataset_repeat);
  return static_cast<double>(config.num_epochs) * std::max(1.0, std::floor(seen / in_a_step));
}

}  // namespace

TrainingBasis training_basis(const train::PreparedRun& run, const order::Training& config) {
  const LoadedModel& model = *run.model;
  TrainingBasis basis{.config = &config, .selection = &run.selection};
  if (run.dataset != nullptr) {
    take_dataset(basis, *run.dataset, model);
  } else {
    take_cache(basis, config.cache_path, model);
  }
  basis.steps = config.max_train_steps ? static_cast<double>(*config.max_train_steps)
                                       : count_steps(config, basis.samples);
  basis.on_host = config.offload.optimizer;
  if (!run.prompts.empty()) {
    const Settings& largest = std::ranges::max(
        run.prompts, {}, [&](const Settings& prompt) { return pixels_of(prompt, model); });
    basis.preview = generate::blank_request(largest, model);
  }
  return basis;
}

namespace {

std::vector<Alternative> training_alternatives(LoadedModel& model, const TrainingBasis& basis,
                                               const PlanBasis& plan_basis) {
  const order::Training& config = *basis.config;
  std::vector<Alternative> alternatives = storage_alternatives(
      model, config.model, untrained(model, *basis.selection), [&](LoadedModel& changed) {
        report::Problems problems;
        const parameters::Selection selection =
            parameters::select_trained(changed, config, problems);
        TrainingBasis other = basis;
        other.selection = &selection;
        return size_training(changed, other, plan_basis);
      });
  const auto add = [&](const char* flags, void (*change)(order::Training&)) {
    alternatives.push_back({flags, [&model, basis, &plan_basis, change] {
                              order::Training changed = *basis.config;
                              change(changed);
                              TrainingBasis other = basis;
                              other.config = &changed;
                              return size_training(model, other, plan_basis);
                            }});
  };
  if (config.offload.least_bytes > 0)
    add("without --param_size_threshold", [](order::Training& c) { c.offload.least_bytes = 0; });
  if (config.order.batch_size > 1)
    add("--batch_size 1", [](order::Training& c) { c.order.batch_size = 1; });
  return alternatives;
}

}  // namespace

PlanTarget training_target(const train::PreparedRun& run) {
  const order::Training& config = run.config;
  PlanTarget target = plan_target(config.memory.limits, config.model, *run.model);
  target.basis.prefetch = config.memory.prefetch;
  return target;
}

Outcome plan_training(const train::PreparedRun& run) {
  PlanTarget target = training_target(run);
  if (!target.has_limit) return {};
  share_host(target, run.config.ranks.local_size);
  return plan_unless_impossible(run.config.memory.limits, [&] {
    LoadedModel& model = *run.model;
    TrainingBasis basis = training_basis(run, run.config);
    const std::vector<Alternative> alternatives = training_alternatives(model, basis, target.basis);
    const SizedRun sized = size_training(model, basis, target.basis);
    // On the device it is faster; where that does not fit, trained weights and optimizer move.
    if (!basis.on_host && !run.selection.weights.empty() && !try_plan(sized, target)) {
      basis.on_host = true;
      const SizedRun moved = size_training(model, basis, target.basis);
      return plan_or_refuse(moved, target, alternatives);
    }
    return plan_or_refuse(sized, target, alternatives);
  });
}

parameters::Layout layout_of(const order::Training& order, const Planned& planned) {
  parameters::Layout layout = parameters::unplanned_layout(order);
  layout.weights = planned_weights(planned.plan, order.model);
  const memory::PhaseChoice* phase = planned.plan.phase("train");
  if (phase == nullptr) return layout;
  const memory::ActivationBudget& budget = planned.sized.activations.at(phase->strategy);
  const bool is_open = !order.activation_budget ||
                       order.activation_budget->kind == memory::ActivationBudget::Kind::kAuto;
  const bool is_least =
      budget.kind == memory::ActivationBudget::Kind::kFraction && budget.fraction == 0;
  const bool is_said = order.use_gradient_checkpointing && !order.activation_budget;
  if (is_open && is_least && !order.offloads_activations) {
    layout.use_gradient_checkpointing = true;  // without the measuring of a budget
    layout.activation_budget.reset();
  } else if (is_open && !is_said) {
    layout.activation_budget = budget;
  }
  layout.optimizes_on_host |= planned.sized.on_host;
  return layout;
}

void place_trained(train::PreparedRun& run, report::Problems& problems) {
  const auto& places = run.layout.weights.placement.offload;
  std::set<const Weight*> stay;
  std::set<std::string> on_disk;
  for (const auto& trained : run.selection.weights) {
    const auto place = places.find(trained.component);
    if (place == places.end() && !run.layout.optimizes_on_host) stay.insert(trained.weight);
    if (place != places.end() && place->second == memory::Place::kDisk)
      on_disk.insert(trained.component);
  }
  for (const std::string& component : on_disk)
    problems.add("--offload " + component + "=disk: its weights are trained, files are not changed",
                 "use " + component + "=host");
  run.model->keep_on_device(stay);
}

namespace {

void note_plan(const Outcome& outcome, const std::string& unchecked, progress::Progress& progress) {
  if (!outcome.unplanned.empty()) {
    progress.warn("warning: no plan: " + outcome.unplanned);
  } else if (!unchecked.empty()) {
    progress.warn("warning: sizes are not checked beforehand: " + unchecked);
  }
  if (!outcome.planned) return;
  for (const std::string& line : plan_notes(*outcome.planned)) progress.note(line);
}

}  // namespace

void follow_plan(const Outcome& outcome, const order::Generation& order, LoadedModel& model,
                 const std::string& unchecked, progress::Progress& progress) {
  apply_limits(order.limits, model.device());
  note_plan(outcome, unchecked, progress);
  if (outcome.planned) model.rearrange(layout_of(order, model, outcome.planned).weights);
  for (const std::string& note : model.notes()) progress.note("note: " + note);
}

void follow_plan(const Outcome& outcome, train::PreparedRun& run, progress::Progress& progress) {
  apply_limits(run.config.memory.limits, run.model->device());
  note_plan(outcome, run.unchecked, progress);
  if (!outcome.planned) return;
  run.layout = layout_of(run.config, *outcome.planned);
  run.model->rearrange(run.layout.weights);
  report::Problems problems;
  place_trained(run, problems);
  problems.throw_if_any();
}

void note_measured(const Planned& planned, LoadedModel& model, progress::Progress& progress) {
  int64_t measured = 0;
  if (model.is_simulated()) {
    measured = model.transfer()->stats().peak_bytes;
  } else if (!model.device().is_cpu()) {
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    measured = at::accelerator::getDeviceStats(model.device().index()).reserved_bytes[all].peak;
  }
  if (measured == 0) return;
  const int64_t predicted = planned.plan.device_bytes - planned.target.basis.profile.reserve_bytes;
  progress.note("memory: predicted " + report::bytes_text(predicted) + ", measured " +
                report::bytes_text(measured));
}

}  // namespace atelier::plan
