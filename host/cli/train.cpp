// atelier train: LoRA and full training.
#include <optional>

#include "host/cli/commands.h"
#include "host/cli/family.h"
#include "host/cli/plan.h"
#include "host/plan/prepared_training.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/run/memory_timeline.h"
#include "host/run/stop.h"
#include "host/train/compat_line.h"
#include "host/train/run_checks.h"

namespace atelier::cli {

plan::TrainingRequest read_training(std::span<const std::string> arguments,
                                    std::string_view command, report::Problems& problems) {
  const plugins::Plugin* const plugin = choose_train_family(arguments, problems);
  train::Config config =
      train::parse_config(arguments, plugin ? plugin->family : nullptr, problems, command);
  progress::Progress progress(progress::stderr_options(config.log.quiet));
  for (const std::string& note : config.notes) progress.note("note: " + note);
  flags::apply(config.process);
  if (plugin == nullptr) problems.throw_if_any();
  return {.family = *plugin->family, .config = std::move(config)};
}

namespace {

int train(plan::PreparedTraining& prepared, progress::Progress& progress) {
  const run::StopSignals signals;
  model::LoadedModel& model = *prepared.run.model;
  std::optional<run::MemoryTimeline> timeline;
  if (const std::string& file = prepared.run.config.memory.report; !file.empty())
    timeline.emplace(file, model.device(), model.transfer());
  const train::RunEnd end =
      train::run_training(prepared.run, timeline ? &*timeline : nullptr, progress);
  if (!end.has_trained) return end.exit_code;
  for (const std::string& line : model.streaming_report()) progress.note(line);
  if (prepared.planned) plan::note_measured(*prepared.planned, model, progress);
  if (timeline) {
    for (const std::string& file : timeline->write()) progress.note(file);
  }
  return end.exit_code;
}

// `only`: null to train, otherwise the plan is printed and nothing is trained.
int train_or_plan(std::span<const std::string> arguments, const PlanOnly* only) {
  if (train::is_compat_line(arguments)) return run_compat_line(arguments);
  if (flags::wants_help(arguments)) return print_help(train_command(family_for_help(arguments)));
  report::Problems problems;
  plan::TrainingRequest request = read_training(arguments, "train", problems);
  progress::Progress progress(progress::stderr_options(request.config.log.quiet));
  if (only == nullptr) {
    train::check_output_folder(request.config, problems);
  } else {
    request.is_planned_only = true;
    request.device_profile = only->device_profile;
  }
  plan::PreparedTraining prepared = prepare_training(std::move(request), progress, problems);
  if (only != nullptr) return print_plan(prepared.planned, prepared.unplanned, *only);
  return train(prepared, progress);
}

}  // namespace

int run_train(std::span<const std::string> arguments) {
  return train_or_plan(arguments, /*only=*/nullptr);
}

int plan_train(std::span<const std::string> arguments, const PlanOnly& only) {
  return train_or_plan(arguments, &only);
}

}  // namespace atelier::cli
