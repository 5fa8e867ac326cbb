// What is told of a plan: a table, JSON, a curve of time over memory, and one line at the end.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/plan/planning.h"
#include "memory/planner.h"

namespace atelier::plan {

// What rests where and why, phases with their peaks and times, and the totals.
std::string plan_table(const Planned& planned);
nlohmann::json plan_json(const Planned& planned);
// A few lines for stderr before a run.
std::vector<std::string> plan_notes(const Planned& planned);

std::string curve_csv(const std::vector<memory::CurvePoint>& curve);
std::string curve_svg(const std::vector<memory::CurvePoint>& curve, const std::string& title);

}  // namespace atelier::plan
