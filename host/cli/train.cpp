// atelier train: LoRA and full training.
#include <algorithm>
#include <chrono>
#include <optional>

#include "host/check/training.h"
#include "host/cli/commands.h"
#include "host/cli/family.h"
#include "host/cli/plan.h"
#include "host/cli/process.h"
#include "host/cli/ranks.h"
#include "host/device/cuda.h"
#include "host/distributed/group.h"
#include "host/distributed/handshake.h"
#include "host/foreign/compat_line.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/report/say_once.h"
#include "host/run/memory_timeline.h"
#include "host/run/stop.h"

namespace atelier::cli {

order::Training read_training(std::span<const std::string> arguments, std::string_view command,
                              bool computes, report::Problems& problems) {
  order::Words words({arguments.begin(), arguments.end()}, cache_command(nullptr), problems);
  const plugins::Plugin* const plugin = choose_family(words, problems);
  order::Training order =
      order::read_training(words, plugin ? plugin->family : nullptr, problems, command);
  for (const std::string& note : order.notes) {
    if (!order.log.quiet) report::say_once("note: " + note + "\n");
  }
  set_up(order, computes, problems);
  if (plugin == nullptr) problems.throw_if_any();
  return order;
}

namespace {

using distributed::Group;
using train::PreparedRun;

int train(PreparedRun& run, const plan::Outcome& outcome, progress::Progress& progress,
          Group& group) {
  run::StopSignals::begin();
  model::LoadedModel& model = *run.model;
  std::optional<run::MemoryTimeline> timeline;
  if (const std::string& file = run.config.memory.report; !file.empty() && group.is_first())
    timeline.emplace(file, model.device(), model.transfer());
  const train::RunEnd end = train::run_training(run, timeline ? &*timeline : nullptr, progress,
                                                group.exchanges() ? &group : nullptr);
  run::StopSignals::ignore_until_exit();
  if (!end.has_trained && end.exit_code != 0) {
    group.give_up("stopped by a signal");  // which the others may not have had
    return end.exit_code;
  }
  group.part();
  if (!end.has_trained) return end.exit_code;
  for (const std::string& line : model.streaming_report()) progress.note(line);
  if (outcome.planned) plan::note_measured(*outcome.planned, model, progress);
  if (timeline) {
    for (const std::string& file : timeline->write()) progress.note(file);
  }
  return end.exit_code;
}

// One of the processes that train together, which may be the only one.
int train_with(Group& group, order::Training order, report::Problems& problems) {
  agree_on_kernels(group, order);
  order.ranks = group.ranks();
  progress::Progress progress(progress::stderr_options(order.log.quiet || !group.is_first()));
  plan::Outcome outcome;
  PreparedRun run = prepare_together(group, [&] {
    PreparedRun opened = check::open_training(std::move(order), progress, problems);
    outcome = plan::plan_training(opened);
    plan::follow_plan(outcome, opened, progress);
    return opened;
  });
  require_same_run(group, run);
  if (agree_on_layout(group, run))
    progress.note("another process has less room: all place weights and activations as it plans");
  share_host_memory(group, run);
  return train(run, outcome, progress, group);
}

int train_with_others(order::Training order, report::Problems& problems) {
  const run::StopSignals signals(run::StopSignals::Kind::kAllFromBegin);
  const distributed::Ranks ranks = distributed::find_ranks(distributed::process_environment());
  choose_gpu(order.model.device, ranks);
  distributed::GroupOptions options = {.exchange = std::chrono::seconds(order.dist_timeout)};
  // Who asks for a backend can try it with one process.
  options.even_alone = !ranks.launcher.empty() && order.dist_backend != "auto";
  if (!ranks.is_alone() || options.even_alone)
    options.gpu = gpu_of_nccl(order.model.device, order.dist_backend);
  return distributed::run_with_others(
      ranks, options, [&](Group& group) { return train_with(group, std::move(order), problems); });
}

int plan_only(order::Training order, const PlanOnly& only, report::Problems& problems) {
  progress::Progress progress(progress::stderr_options(order.log.quiet));
  plan::plan_elsewhere(only.device_profile, order.memory.limits, order.model);
  // What one process cannot hold, several may.
  const bool is_alone = only.ranks.counts.empty();
  const PreparedRun run =
      check::open_planned(std::move(order), /*guards_sizes=*/is_alone, progress, problems);
  if (!is_alone) return print_ranks(plan::plan_ranks(run, only.ranks), only);
  return print_plan(plan::plan_training(run), only);
}

// `only`: null to train, otherwise the plan is printed and nothing is trained.
int train_or_plan(std::span<const std::string> arguments, const PlanOnly* only) {
  if (foreign::is_compat_line(arguments)) return run_compat_line(arguments);
  if (flags::wants_help(arguments)) return print_help(train_command(family_for_help(arguments)));
  report::Problems problems;
  order::Training order = read_training(arguments, "train", /*computes=*/only == nullptr, problems);
  return only != nullptr ? plan_only(std::move(order), *only, problems)
                         : train_with_others(std::move(order), problems);
}

}  // namespace

int run_train(std::span<const std::string> arguments) {
  return train_or_plan(arguments, /*only=*/nullptr);
}

int plan_train(std::span<const std::string> arguments, const PlanOnly& only) {
  return train_or_plan(arguments, &only);
}

}  // namespace atelier::cli
