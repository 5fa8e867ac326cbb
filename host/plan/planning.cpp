#include "host/plan/planning.h"

#include <algorithm>
#include <cmath>

#include <c10/util/StringUtil.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "host/tune/kernel_table.h"
#include "memory/activation_budget.h"

namespace atelier::plan {
namespace {

using memory::MemoryPlan;
using model::LoadedModel;
using model::LoadOptions;

// The part of a device's limit that is planned with.
constexpr double kPlannedPart = 0.97;

}  // namespace

memory::DeviceProfile profile_named(const std::string& name) {
  if (const auto known = memory::known_profile(name)) return *known;
  if (files::is_file(name)) return memory::parse_profile(files::read_text_file(name), name);
  const std::vector<std::string> names = memory::profile_names();
  const std::string nearest = report::nearest_name(name, names);
  throw Error(ErrorCode::kNotFound,
              "--device_profile: " + formats::quote_and_escape(name) + " is no file, and none of " +
                  report::list_names(names, names.size()),
              (nearest.empty() ? "" : "did you mean " + nearest + "? or ") +
                  std::string("give a JSON file with the device's numbers"));
}

void plan_elsewhere(const std::optional<memory::DeviceProfile>& profile, MemoryLimits& limits,
                    model::LoadOptions& request) {
  limits.device_profile = profile;
  if (profile && request.dtype == "auto") request.dtype = "bfloat16";
}

PlanTarget plan_target(const MemoryLimits& limits, const LoadOptions& request,
                       const LoadedModel& model) {
  PlanTarget target;
  if (!limits.plans) return target;
  target.basis.placement = request.placement;
  target.basis.allowed_storages = limits.allowed_storages;
  target.basis.stored = request.storage;
  target.basis.keeps_places = !limits.vram;
  const auto& simulated = model.simulated();
  memory::DeviceProfile& profile = target.basis.profile;
  if (limits.device_profile) {
    profile = *limits.device_profile;
    target.basis.like = at::kCUDA;
    target.limits.device_bytes = limits.vram.value_or(profile.memory_bytes);
    target.limits.host_bytes = limits.host_memory.value_or(INT64_MAX);
    target.has_limit = true;
    return target;
  }
  const double known_copies =
      simulated ? simulated->bytes_per_second : tune::copy_bytes_per_second(model.device());
  profile = memory::measure_profile(model.device(), known_copies);
  if (simulated && simulated->capacity < INT64_MAX) profile.memory_bytes = simulated->capacity;
  // A context is part of what the user says, and no more of what is free.
  if (limits.vram && model.device().is_cuda()) profile.reserve_bytes = memory::kCudaReserveBytes;
  target.basis.like = model.device().type();
  target.has_limit = limits.vram.has_value() || !model.device().is_cpu() ||
                     (simulated && simulated->capacity < INT64_MAX);
  target.limits.device_bytes = limits.vram.value_or(profile.memory_bytes);
  target.limits.host_bytes = limits.host_memory.value_or(memory::available_bytes(at::kCPU));
  return target;
}

void share_host(PlanTarget& target, int64_t processes) {
  target.host_sharers = processes;
  if (target.limits.host_bytes < INT64_MAX) target.limits.host_bytes /= processes;
}

int64_t limit_for(int64_t bytes) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(bytes) / kPlannedPart));
}

namespace {

// The phase that takes most.
std::string largest_phase(const MemoryPlan& plan) {
  if (plan.phases.empty()) return "";
  return std::ranges::max(plan.phases, {}, &memory::PhaseChoice::device_bytes).name;
}

// What `alternatives` would need, those that need least first: those that fit, or where none does,
// those that need less than `least` bytes.
std::string hint_of(const std::vector<Alternative>& alternatives, const PlanTarget& target,
                    int64_t least) {
  std::vector<std::pair<int64_t, std::string>> found;
  for (const Alternative& alternative : alternatives) {
    const SizedRun sized = alternative.size();
    const auto plan =
        memory::smallest_plan(sized.run, target.limits.host_bytes, target.basis.profile);
    if (plan && plan->device_bytes < least)
      found.emplace_back(limit_for(plan->device_bytes), alternative.flags);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second.size()) < std::pair(b.first, b.second.size());
  });
  std::string fitting, smaller;
  int64_t told = -1;
  for (const auto& [bytes, flags] : found) {
    if (bytes == told) continue;  // more flags for the same
    told = bytes;
    std::string& list = bytes <= target.limits.device_bytes ? fitting : smaller;
    list += (list.empty() ? "" : "; ") + flags + " would need " + report::bytes_text(bytes);
  }
  if (!fitting.empty()) return fitting;
  return smaller + (smaller.empty() ? "" : ": not enough; ") + std::string(report::kSmallerHint);
}

// Plans bring at least one block ahead, as all without is much slower.
Alternative without_prefetch(const SizedRun& sized) {
  return {"--prefetch 0", [sized] {
            SizedRun changed = sized;
            changed.run.prefetch = 0;
            return changed;
          }};
}

Error refusal(const SizedRun& sized, const PlanTarget& target,
              std::vector<Alternative> alternatives) {
  if (!sized.run.prefetch) alternatives.push_back(without_prefetch(sized));
  const auto smallest =
      memory::smallest_plan(sized.run, target.limits.host_bytes, target.basis.profile);
  const std::string hint =
      hint_of(alternatives, target, smallest ? smallest->device_bytes : INT64_MAX);
  std::string message =
      "the run does not fit into " + report::bytes_text(target.limits.device_bytes);
  if (smallest) {
    message += ": it needs " + report::bytes_text(limit_for(smallest->device_bytes)) +
               " at least, to " + largest_phase(*smallest);
  } else {
    message += " and " + report::bytes_text(target.limits.host_bytes) + " of host memory";
    if (target.host_sharers > 1)
      message += c10::str(", which is what each of ", target.host_sharers,
                          " processes has of the machine's");
  }
  return {ErrorCode::kOutOfMemory, message, hint, "PLAN_DOES_NOT_FIT"};
}

}  // namespace

std::vector<memory::CurvePoint> Planned::curve(int64_t count) const {
  auto points =
      memory::plan_curve(sized.run, target.limits.host_bytes, target.basis.profile, count);
  for (memory::CurvePoint& point : points) point.limit_bytes = limit_for(point.limit_bytes);
  return points;
}

std::optional<Planned> try_plan(const SizedRun& sized, const PlanTarget& target) {
  memory::PlanLimits limits = target.limits;  // less than they are: predictions are not exact
  limits.device_bytes =
      static_cast<int64_t>(kPlannedPart * static_cast<double>(limits.device_bytes));
  std::optional<MemoryPlan> plan = memory::plan_memory(sized.run, limits, target.basis.profile);
  if (!plan) return std::nullopt;
  return Planned{sized, std::move(*plan), target, limits};
}

Planned plan_or_refuse(const SizedRun& sized, const PlanTarget& target,
                       const std::vector<Alternative>& alternatives) {
  std::optional<Planned> planned = try_plan(sized, target);
  if (!planned) throw refusal(sized, target, alternatives);
  return std::move(*planned);
}

}  // namespace atelier::plan
