#include "host/plan/plan_run.h"

#include <algorithm>

#include <ATen/DeviceAccelerator.h>

#include "atelier/error.h"

#include "host/plan/run_basis.h"
#include "host/report/problems.h"
#include "host/report/text.h"

namespace atelier::plan {
namespace {

using model::LoadedModel;
using order::Job;

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
  const PlanTarget target = plan_target(order.limits, *order.load, model);
  if (!target.has_limit) return {};
  return plan_unless_impossible(order.limits, [&] {
    const GenerationBasis basis = generation_basis(model, order, jobs);
    std::vector<Alternative> alternatives = storage_alternatives(
        model, *order.load, untrained(model, {}),
        [&](LoadedModel& changed) { return size_generation(changed, basis, target.basis); });
    if (!basis.request.tiling) alternatives.push_back(tiled(model, basis, target.basis));
    Planned planned;
    try {
      planned = plan_or_refuse(size_generation(model, basis, target.basis), target, alternatives);
    } catch (const Error& error) {
      if (jobs.size() == 1) throw;
      const Job& largest = largest_job(model, jobs);
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
  return plan_target(config.memory.limits, config.model, *run.model);
}

Outcome plan_training(const train::PreparedRun& run) {
  PlanTarget target = training_target(run);
  if (!target.has_limit) return {};
  share_host(target, run.config.ranks.local_size);
  return plan_unless_impossible(run.config.memory.limits, [&] {
    LoadedModel& model = *run.model;
    TrainingBasis basis = training_basis(run);
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
