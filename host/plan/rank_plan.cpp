#include "host/plan/rank_plan.h"

#include <algorithm>
#include <utility>

#include "atelier/error.h"

#include "host/model/sequence_check.h"
#include "host/report/sizes.h"
#include "host/report/text.h"
#include "memory/planner.h"

namespace atelier::plan {
namespace {

using memory::LinkProfile;
using model::LoadedModel;
using report::print;

// Faster by less than this part is not worth a way that shares more.
constexpr double kWorthIt = 0.01;

// The ways without sequence parallel, those that share least first.
std::vector<RankMode> plain_modes(int64_t ranks, bool trains_weights, const LinkProfile& links) {
  std::vector<RankMode> modes = {{.ranks = ranks, .group = ranks}};
  const auto add = [&](int stage, bool on_host, int64_t group) {
    modes.push_back({.ranks = ranks, .zero_stage = stage, .on_host = on_host, .group = group});
  };
  if (ranks == 1) {
    if (trains_weights) add(0, /*on_host=*/true, 1);
    return modes;
  }
  const int64_t machine = links.ranks_per_machine;
  if (trains_weights) {
    add(1, /*on_host=*/false, ranks);
    add(2, /*on_host=*/false, ranks);
  }
  if (ranks > machine && ranks % machine == 0) add(3, /*on_host=*/false, machine);
  add(3, /*on_host=*/false, ranks);
  if (trains_weights) {
    add(2, /*on_host=*/true, ranks);
    add(3, /*on_host=*/true, ranks);
  }
  return modes;
}

// One of them with the rows of samples shared out as well.
std::vector<RankMode> sequence_modes(const RankMode& base, const LinkProfile& links) {
  std::vector<RankMode> modes;
  for (int64_t parts = 2; parts <= std::min(base.ranks, links.ranks_per_machine); parts *= 2) {
    if (base.ranks % parts != 0) break;
    modes.push_back(base);
    modes.back().sequence = parts;
  }
  return modes;
}

std::string flags_of(const RankMode& mode) {
  std::string flags;
  const auto add = [&](const std::string& flag) { flags += (flags.empty() ? "" : " ") + flag; };
  if (mode.zero_stage > 0) add("--zero_stage " + std::to_string(mode.zero_stage));
  if (mode.zero_stage > 0 && mode.group < mode.ranks) add("--zero_group node");
  if (mode.on_host) add("--optimize_on_cpu");
  if (mode.sequence > 1) add("--sequence_parallel " + std::to_string(mode.sequence));
  return flags;
}

class Planning {
 public:
  Planning(LoadedModel& model, const TrainingAsked& asked, const PlanTarget& target,
           const LinkProfile& links)
      : model_(model),
        asked_(asked),
        target_(target),
        links_(links),
        basis_(training_basis(model, asked)) {}

  RanksPlan of(int64_t ranks) const {
    RanksPlan plan{.ranks = ranks};
    const bool trains_weights = !asked_.selection.weights.empty();
    add_rows(plan, plain_modes(ranks, trains_weights, links_));
    // Rows are shared on top of the best of these, or of what takes least.
    const RankRow base = plan.best ? plan.rows[*plan.best] : least_of(plan);
    if (model::shared_rows_of(model_) != nullptr) add_rows(plan, sequence_modes(base.mode, links_));
    plan.why = why(plan);
    return plan;
  }

 private:
  static RankRow least_of(const RanksPlan& plan) {
    return std::ranges::min(plan.rows, {}, &RankRow::device_bytes);
  }

  void add_rows(RanksPlan& plan, const std::vector<RankMode>& modes) const {
    const std::vector<SizedRun> runs = size_training(model_, basis_, target_.basis, links_, modes);
    for (size_t i = 0; i < modes.size(); ++i) {
      const RankRow row = plan.rows.emplace_back(row_of(modes[i], runs[i]));
      if (row.fits && (!plan.best || row.samples_per_second >
                                         (1 + kWorthIt) * plan.rows[*plan.best].samples_per_second))
        plan.best = plan.rows.size() - 1;
    }
  }

  RankRow row_of(const RankMode& mode, const SizedRun& sized) const {
    RankRow row{.mode = mode, .flags = flags_of(mode)};
    PlanTarget target = target_;
    if (target.limits.host_bytes < INT64_MAX)  // of a machine, whose ranks share it
      target.limits.host_bytes /= std::min(mode.ranks, links_.ranks_per_machine);
    const std::optional<PlannedResult> planned = try_plan(sized, target);
    if (!planned) {
      const auto smallest = memory::smallest_plan(sized.run, INT64_MAX, target_.basis.profile);
      row.device_bytes = smallest ? limit_for(smallest->device_bytes) : 0;
      row.host_bytes = smallest ? smallest->host_bytes : 0;
      return row;
    }
    row.fits = true;
    row.device_bytes = planned->plan.device_bytes;
    row.host_bytes = planned->plan.host_bytes;
    const memory::PhaseChoice* const phase = planned->plan.phase(sized.main_phase);
    if (phase == nullptr) return row;  // samples are encoded and nothing is trained
    for (const memory::PlannedPhase& part : sized.run.phases) {
      if (part.name != sized.main_phase) continue;
      for (const std::string& name : part.components)
        row.weight_bytes += planned->plan.component(name).device_bytes;
    }
    row.seconds = phase->seconds;
    row.exposed_seconds = phase->waited_seconds;
    if (!sized.exchanges.empty()) {
      row.sent_bytes = sized.exchanges[phase->strategy].sent_bytes;
      row.exposed_seconds += sized.exchanges[phase->strategy].exposed_seconds;
    }
    row.samples_per_second = static_cast<double>(sized.batch_size * mode.batches() *
                                                 batches_of_rank(asked_.config, mode)) /
                             row.seconds;
    return row;
  }

  // What decides.
  std::string why(const RanksPlan& plan) const {
    const std::string limit = report::bytes_text(target_.limits.device_bytes);
    const auto named = [](const RankRow& row) {
      return row.flags.empty() ? std::string("no flag (DDP)") : row.flags;
    };
    if (!plan.best) {
      const RankRow least = least_of(plan);
      return "nothing fits into " + limit + "; " + named(least) + " needs " +
             report::bytes_text(least.device_bytes);
    }
    const RankRow& best = plan.rows[*plan.best];
    std::string text = named(best) + ": the fastest of what fits";
    if (const RankRow& ddp = plan.rows.front(); !ddp.fits)
      text += "; without it a rank needs " + report::bytes_text(ddp.device_bytes) + " of " + limit;
    if (best.exposed_seconds > kWorthIt * best.seconds)
      text += print("; %.0f %% of a step waits for other ranks",
                    100 * best.exposed_seconds / best.seconds);
    return text;
  }

  LoadedModel& model_;
  const TrainingAsked& asked_;
  const PlanTarget& target_;
  const LinkProfile& links_;
  TrainingBasis basis_;
};

}  // namespace

PlannedRanks plan_ranks(LoadedModel& model, const MemoryLimits& limits, const TrainingAsked& asked,
                        const RanksAsked& ranks) {
  PlannedRanks planned{.target = plan_target(limits, asked.config.model, model),
                       .links = ranks.links};
  if (!planned.target.has_limit)
    throw Error(ErrorCode::kUnsupported, "--ranks: there is no device to plan for",
                "say one with --device_profile, or a limit with --vram");
  planned.target.basis.prefetch = asked.prefetch;
  const int64_t most = std::ranges::max(ranks.counts);
  if (most > ranks.links.ranks_per_machine && ranks.links.remote_bytes_per_second == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "--network " + ranks.links.name + " was measured on one machine of " +
                    std::to_string(ranks.links.ranks_per_machine) + ", and --ranks says " +
                    std::to_string(most),
                "measure on two machines, or say infiniband or ethernet");
  const Planning planning(model, asked, planned.target, planned.links);
  for (const int64_t count : ranks.counts) planned.plans.push_back(planning.of(count));
  return planned;
}

std::string rank_table(const PlannedRanks& planned) {
  const memory::DeviceProfile& device = planned.target.basis.profile;
  const LinkProfile& links = planned.links;
  std::string text =
      "plan for ranks on " + device.name + ": " +
      report::bytes_text(planned.target.limits.device_bytes) + " each, " +
      std::to_string(links.ranks_per_machine) + " to a machine; network " + links.name +
      print(": %.3g GB/s and %.3g us in a machine", links.local_bytes_per_second / 1e9,
            links.local_latency_seconds * 1e6) +
      (links.remote_bytes_per_second == 0
           ? std::string()
           : print(", %.3g GB/s and %.3g us between machines", links.remote_bytes_per_second / 1e9,
                   links.remote_latency_seconds * 1e6)) +
      "\n\n";
  std::vector<std::vector<std::string>> cells = {{">ranks", "flags", ">device", ">its weights",
                                                  ">host", ">host of a machine", ">sent a step",
                                                  ">exposed", ">a step", ">samples/s", ""}};
  for (const RanksPlan& plan : planned.plans) {
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const RankRow& row = plan.rows[i];
      const int64_t machine = row.host_bytes * std::min(plan.ranks, links.ranks_per_machine);
      cells.push_back({std::to_string(plan.ranks), row.flags.empty() ? "-" : row.flags,
                       report::bytes_text(row.device_bytes), "", report::bytes_text(row.host_bytes),
                       report::bytes_text(machine), "", "", "", "", "does not fit"});
      if (!row.fits) continue;
      cells.back()[3] = report::bytes_text(row.weight_bytes);
      cells.back()[6] = report::bytes_text(static_cast<int64_t>(row.sent_bytes));
      cells.back()[7] = time_text(row.exposed_seconds);
      cells.back()[8] = time_text(row.seconds);
      cells.back()[9] = print("%.3g", row.samples_per_second);
      cells.back()[10] = plan.best == i ? "choose" : "";
    }
  }
  text += columns(std::move(cells)) + "\n";
  for (const RanksPlan& plan : planned.plans)
    text += std::to_string(plan.ranks) + " ranks: " + plan.why + "\n";
  return text;
}

nlohmann::json rank_json(const PlannedRanks& planned) {
  nlohmann::json plans = nlohmann::json::array();
  for (const RanksPlan& plan : planned.plans) {
    nlohmann::json rows = nlohmann::json::array();
    for (const RankRow& row : plan.rows)
      rows.push_back({{"flags", row.flags},
                      {"fits", row.fits},
                      {"device_bytes", row.device_bytes},
                      {"weight_bytes", row.weight_bytes},
                      {"host_bytes", row.host_bytes},
                      {"sent_bytes", row.sent_bytes},
                      {"exposed_seconds", row.exposed_seconds},
                      {"seconds", row.seconds},
                      {"samples_per_second", row.samples_per_second}});
    plans.push_back({{"ranks", plan.ranks},
                     {"rows", rows},
                     {"choose", plan.best ? nlohmann::json(plan.rows[*plan.best].flags) : nullptr},
                     {"why", plan.why}});
  }
  return {{"profile", planned.target.basis.profile.name},
          {"limit_bytes", planned.target.limits.device_bytes},
          {"network", planned.links.name},
          {"ranks_per_machine", planned.links.ranks_per_machine},
          {"plans", plans}};
}

}  // namespace atelier::plan
