// What --vram and `atelier plan` share.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/flags/flags.h"
#include "host/plan/plan_run.h"
#include "host/progress/progress.h"

namespace atelier::cli {

// --vram, --host_memory and --allow_storage.
std::vector<flags::FlagSpec> memory_flags();
// Of a command with memory_flags().
plan::MemoryWishes memory_wishes(const flags::ParsedFlags& flags);

// A command that is only planned.
struct PlanOnly {
  std::string device_profile;  // empty: the device that is there
  std::string json, curve;     // files; empty: none
};

// What a model is opened with, and what was said of memory, where the device need not be there.
void plan_elsewhere(const PlanOnly& only, plan::MemoryWishes& wishes, model::LoadRequest& request);

// The table on stdout, and the files. Returns the exit code. Throws Error{kUnsupported} when there
// is no plan, for the `reason`, or for want of a limit.
int print_plan(const std::optional<plan::Planned>& planned, const std::string& reason,
               const PlanOnly& only);
// For a command that goes on with the plan.
void note_plan(const plan::Planned& planned, progress::Progress& progress);
// When it is done: what was predicted and what was measured, where that can be.
void note_measured(const plan::Planned& planned, model::LoadedModel& model,
                   progress::Progress& progress);

// The commands as `atelier plan` calls them: they check everything, print the plan and end.
int plan_generate(std::span<const std::string> arguments, const PlanOnly& only);
int plan_train(std::span<const std::string> arguments, const PlanOnly& only);

}  // namespace atelier::cli
