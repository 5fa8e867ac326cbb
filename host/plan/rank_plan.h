// A training planned for many ranks: every way to share it, and which to choose.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "host/plan/plan_run.h"

namespace atelier::plan {

struct RanksOrder {
  std::vector<int64_t> counts;  // of ranks; empty: none is asked for
  memory::LinkProfile links;
};

// One way, of which everything is of one rank.
struct RankRow {
  RankMode mode;
  std::string sharing =
      {};                  // the flags of `atelier train` that share it so; empty: none are needed
  std::string flags = {};  // the same, and where it fits those that say what its plan takes beside
  bool fits = false;
  int64_t device_bytes = 0;  // at most; where it does not fit, what it needs at least
  int64_t host_bytes = 0;    // of what the ranks of a machine have together, its share
  int64_t weight_bytes = 0;  // of these on the device, of what is trained or runs in a step
  // What a step takes; only where it fits. exposed_seconds: in which nothing is computed for want
  // of what other ranks send; copied_seconds: for want of copies from the host.
  double sent_bytes = 0.0, exposed_seconds = 0.0, copied_seconds = 0.0, seconds = 0.0;
  double samples_per_second = 0.0;  // of all ranks
};

struct RanksPlan {
  int64_t ranks = 1;
  std::vector<RankRow> rows = {};
  std::optional<size_t> best = std::nullopt;  // of the rows; nullopt: none fits
  std::string why = {};
  std::vector<std::string> left_out = {};  // why ways are not among the rows
};

struct PlannedRanks {
  std::vector<RanksPlan> plans = {};
  PlanTarget target;
  memory::LinkProfile links;
};

// Throws Error{kUnsupported} when there is no device to plan for, and Error{kInvalidArgument} when
// the links say nothing of as many ranks.
PlannedRanks plan_ranks(const train::PreparedRun& run, const RanksOrder& ranks);

std::string rank_table(const PlannedRanks& planned);
nlohmann::json rank_json(const PlannedRanks& planned);

}  // namespace atelier::plan
