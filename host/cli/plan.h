// What `atelier plan` asks of the commands that it plans.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/plan/plan_run.h"
#include "host/plan/rank_plan.h"

namespace atelier::cli {

// A command that is only planned.
struct PlanOnly {
  std::optional<memory::DeviceProfile> device_profile;  // nullopt: the device that is there
  std::string json, curve;                              // files; empty: none
  plan::RanksOrder ranks;                               // none: one process
};

// The table on stdout, and the files. Returns the exit code. Throws Error{kUnsupported} when there
// is no plan.
int print_plan(const plan::Outcome& outcome, const PlanOnly& only);

// Prints the plans of a training on several ranks.
int print_ranks(const plan::PlannedRanks& planned, const PlanOnly& only);

// The commands as `atelier plan` calls them: they check everything, print the plan and end.
int plan_generate(std::span<const std::string> arguments, const PlanOnly& only);
int plan_serve(std::span<const std::string> arguments, const PlanOnly& only);
int plan_train(std::span<const std::string> arguments, const PlanOnly& only);

}  // namespace atelier::cli
