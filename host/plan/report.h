// What is told of a plan: a table, JSON, a curve of time over memory, and one line at the end.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/plan/planning.h"
#include "memory/planner.h"

namespace atelier::plan {

// "12.5 ms"
std::string time_text(double seconds);
// Columns as wide as their longest cell; those whose heading begins with '>' are flush right.
std::string columns(std::vector<std::vector<std::string>> rows);

// What rests where, how many bytes it takes and why.
struct PlanRow {
  std::string what, where;
  int64_t bytes = 0;  // of the device
  std::string why;
};
std::vector<PlanRow> plan_rows(const PlannedResult& result, const PlanTarget& target);

// Rows, phases with their peaks and times, and the totals.
std::string plan_table(const PlannedResult& result, const PlanTarget& target);
nlohmann::json plan_json(const PlannedResult& result, const PlanTarget& target);
// A few lines for stderr before a run.
std::vector<std::string> plan_notes(const PlannedResult& result, const PlanTarget& target);

// "batch 1 fits with 9.10 GiB to spare; 3 would fit"
std::string batch_line(const PlannedResult& result, const PlanTarget& target);

std::string curve_csv(const std::vector<memory::CurvePoint>& curve);
std::string curve_svg(const std::vector<memory::CurvePoint>& curve, const std::string& title);

}  // namespace atelier::plan
