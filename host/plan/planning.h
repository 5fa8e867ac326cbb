// From what the user said of memory to a plan, or to what would fit instead.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/model/memory_limits.h"
#include "host/model/model_loader.h"
#include "host/plan/run_sizes.h"
#include "memory/planner.h"

namespace atelier::plan {

using model::MemoryLimits;

// "h200", "4090" or a file with a device's numbers. Throws Error{kNotFound} naming
// --device_profile, and what parse_profile() throws.
memory::DeviceProfile profile_named(const std::string& name);

// Plans for a device that need not be there; nullopt: for the one that is. Weights are planned in
// bfloat16 then, unless a dtype was said.
void plan_elsewhere(const std::optional<memory::DeviceProfile>& profile, MemoryLimits& limits,
                    model::LoadOptions& request);

// Where a run is planned for.
struct PlanTarget {
  PlanBasis basis;
  memory::PlanLimits limits;
  bool has_limit = false;    // of the device: otherwise nothing needs to be planned
  int64_t host_sharers = 1;  // processes that each have a part of the machine's host memory
};

// `request` says the device, and what was said of placement.
PlanTarget plan_target(const MemoryLimits& limits, const model::LoadOptions& request,
                       const model::LoadedModel& model);

// Leaves one of `processes` its part of the machine's host memory.
void share_host(PlanTarget& target, int64_t processes);

// The limit within which a plan of `bytes` fits.
int64_t limit_for(int64_t bytes);

// A run, its plan and what it was made for.
struct Planned {
  SizedRun sized;
  memory::MemoryPlan plan;
  PlanTarget target;
  memory::PlanLimits limits;  // what the plan could take of those of the target

  // The time of the run over the memory of the device.
  std::vector<memory::CurvePoint> curve(int64_t count = 24) const;
};

// What would make a run smaller: flags, and the run with them.
struct Alternative {
  std::string flags;
  std::function<SizedRun()> size;
};

// The fastest plan; nullopt when nothing fits.
std::optional<Planned> try_plan(const SizedRun& sized, const PlanTarget& target);
// The fastest plan. Throws Error{kOutOfMemory} when nothing fits, with the alternatives that do and
// what they need.
Planned plan_or_refuse(const SizedRun& sized, const PlanTarget& target,
                       const std::vector<Alternative>& alternatives);

}  // namespace atelier::plan
