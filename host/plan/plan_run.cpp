#include "host/plan/plan_run.h"

#include <algorithm>

#include <ATen/DeviceAccelerator.h>

#include "atelier/error.h"

#include "host/device/cuda.h"
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
    return {.unplanned = error};
  }
}

using SizeModel = std::function<SizedRun(LoadedModel& model)>;

// Components with weights that could rest in 8 bits and do not, but for those whose own weights are
// `trained`: --storage flags, and the run's model opened with them, as alternatives.
std::vector<Alternative> storage_alternatives(LoadedModel& model, const model::LoadOptions& request,
                                              const parameters::Selection& trained,
                                              const SizeModel& size) {
  std::vector<std::string> names;
  for (const model::LoadedPart& part : model.parts()) {
    const std::string& name = part.detection.component;
    const bool is_trained = std::ranges::any_of(
        trained.weights, [&](const auto& weight) { return weight.component == name; });
    if (!is_trained && model.storage(name) == weights::Storage::kPlain &&
        !weights::storable_weights(model.model(), name).empty())
      names.push_back(name);
  }
  const auto alternative = [&](const std::vector<std::string>& stored) {
    std::string flags;
    model::LoadOptions changed = request;
    // One simulated device with a limit lives at a time.
    if (model.is_simulated()) changed.device = "cpu";
    for (const std::string& name : stored) {
      flags += (flags.empty() ? "--storage " : ",") + name + "=fp8";
      changed.storage[name] = weights::Storage::kFp8;
    }
    return Alternative{flags, [&model, changed, size] {
                         const auto opened = LoadedModel::open(model.family(), changed);
                         return size(*opened);
                       }};
  };
  std::vector<Alternative> alternatives;
  for (const std::string& name : names) alternatives.push_back(alternative({name}));
  if (names.size() > 1) alternatives.push_back(alternative(names));
  return alternatives;
}

Alternative tiled(LoadedModel& model, const GenerationBasis& basis, const PlanBasis& plan_basis) {
  return {"--tiled", [&] {
            GenerationBasis changed = basis;
            changed.request.tiling = order::Tiling();
            return size_generation(model, changed, plan_basis);
          }};
}

// Where weights rest by the plan, as it chose beside what `layout` says.
model::WeightLayout planned_weights(const memory::MemoryPlan& plan, model::WeightLayout layout) {
  model::Placement& placement = layout.placement;
  placement.resident_blocks.clear();
  placement.resident_denoiser_blocks.reset();
  placement.offload.clear();
  placement.offload_others = false;
  for (const memory::ComponentChoice& choice : plan.components) {
    if (choice.storage != "plain")
      layout.storage[choice.name] = weights::storage_named(choice.storage);
    if (choice.resident == choice.num_blocks) continue;
    placement.offload[choice.name] = choice.others;
    placement.resident_blocks[choice.name] = choice.resident;
    placement.prefetch = choice.prefetch;
  }
  return layout;
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
  return bytes && *bytes <= planned.limits.device_bytes;
}

}  // namespace

int64_t allocator_limit(int64_t vram) {
  if (vram > memory::kCudaReserveBytes) return vram - memory::kCudaReserveBytes;
  throw Error(ErrorCode::kInvalidArgument,
              "--vram " + report::bytes_text(vram) + ": driver and libraries alone take " +
                  report::bytes_text(memory::kCudaReserveBytes) + " of a GPU",
              "give more");
}

void apply_limits(const MemoryLimits& limits, at::Device device) {
  if (!limits.device_profile && limits.vram && device.is_cuda())
    device::limit_memory(device, allocator_limit(*limits.vram));
}

Outcome plan_generation(LoadedModel& model, const order::Generation& order,
                        std::span<const Job> jobs) {
  const PlanTarget target = plan_target(order.limits, *order.load, model);
  if (!target.has_limit) return {};
  return plan_unless_impossible(order.limits, [&] {
    const GenerationBasis basis = generation_basis(model, order, jobs);
    std::vector<Alternative> alternatives = storage_alternatives(
        model, *order.load, /*trained=*/{},
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
  layout.weights = planned_weights(planned->plan, {order.load->placement, order.load->storage});
  layout.keeps_all = order.has_several_jobs() && everything_stays(*planned);
  return layout;
}

namespace {

std::vector<Alternative> training_alternatives(LoadedModel& model, const TrainingBasis& basis,
                                               const PlanBasis& plan_basis) {
  const order::Training& config = *basis.config;
  std::vector<Alternative> alternatives =
      storage_alternatives(model, config.model, *basis.selection, [&](LoadedModel& changed) {
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
  share_host(target, config.ranks.local_size);
  return target;
}

Outcome plan_training(const train::PreparedRun& run) {
  const PlanTarget target = training_target(run);
  if (!target.has_limit) return {};
  return plan_unless_impossible(run.config.memory.limits, [&] {
    LoadedModel& model = *run.model;
    TrainingBasis basis = training_basis(run);
    const std::vector<Alternative> alternatives = training_alternatives(model, basis, target.basis);
    if (!basis.on_host && !run.selection.weights.empty()) {
      if (auto planned = try_plan(size_training(model, basis, target.basis), target))
        return *std::move(planned);
      // Elsewhere than on the device trained weights and optimizer are slower, and may fit.
      basis.on_host = true;
    }
    return plan_or_refuse(size_training(model, basis, target.basis), target, alternatives);
  });
}

parameters::Layout planned_layout(parameters::Layout said, const order::Training& order,
                                  const Planned& planned) {
  parameters::Layout layout = std::move(said);
  layout.weights = planned_weights(planned.plan, std::move(layout.weights));
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

void place_trained(train::PreparedRun& run) {
  const auto& places = run.layout.weights.placement.offload;
  std::set<const Weight*> stay;
  for (const auto& trained : run.selection.weights) {
    if (!places.contains(trained.component) && !run.layout.optimizes_on_host)
      stay.insert(trained.weight);
  }
  run.model->keep_on_device(stay);
}

namespace {

void note_plan(const Outcome& outcome, const std::string& unchecked, progress::Progress& progress) {
  if (outcome.unplanned) {
    progress.warn("warning: no plan: " + std::string(outcome.unplanned->what()));
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
  run.layout = planned_layout(std::move(run.layout), run.config, *outcome.planned);
  run.model->rearrange(run.layout.weights);
  place_trained(run);
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
