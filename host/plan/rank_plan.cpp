#include "host/plan/rank_plan.h"

#include <algorithm>
#include <utility>

#include <c10/util/StringUtil.h>

#include "atelier/error.h"

#include "host/model/components.h"
#include "host/model/sequence_check.h"
#include "host/order/training_checks.h"
#include "host/parameters/exchange_plan.h"
#include "host/parameters/selection.h"
#include "host/plan/rank_flags.h"
#include "host/plan/run_basis.h"
#include "host/report/text.h"
#include "memory/planner.h"

namespace atelier::plan {
namespace {

using memory::LinkProfile;
using model::LoadedModel;
using report::print;

// Faster by less than this part is not worth a way that shares more.
constexpr double kWorthIt = 0.01;

bool is_same(const RankMode& a, const RankMode& b) {
  return a.zero_stage == b.zero_stage && a.on_host == b.on_host && a.group == b.group &&
         a.sequence == b.sequence;
}

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

// A training of `order` by so many ranks with its step written down, as train::share_batch() makes
// it for them: every way to share it is planned for the same samples a step.
order::Training with_step(const order::Training& order, int64_t ranks) {
  order::Training config = order;
  if (order.global_batch_size > 0 || ranks == 1) return config;
  const int64_t parts = ranks % order.sequence_parallel == 0 ? order.sequence_parallel : 1;
  if (order.resume.empty()) config.order.gradient_accumulation_steps *= ranks / parts;
  config.global_batch_size =
      static_cast<int>(config.order.batch_size * config.order.gradient_accumulation_steps);
  return config;
}

class Planning {
 public:
  // `basis`: of an order with its step, which rows with other ranks to a batch say where
  // `says_step`. What is given by reference outlives this.
  Planning(LoadedModel& model, const TrainingBasis& basis, bool says_step, const PlanTarget& target,
           const LinkProfile& links)
      : model_(model),
        basis_(basis),
        config_(*basis.config),
        says_step_(says_step),
        target_(target),
        links_(links) {}

  RanksPlan of(int64_t ranks) const {
    RanksPlan plan{.ranks = ranks};
    const bool trains_weights = !basis_.selection->weights.empty();
    add_rows(plan, taken(plan, plain_modes(ranks, trains_weights, links_)));
    // Rows are shared on top of the best of these, or of what takes least.
    const RankRow base = plan.best ? plan.rows[*plan.best] : least_of(plan);
    if (model::shared_rows_of(model_) != nullptr)
      add_rows(plan, taken(plan, sequence_modes(base.mode, links_)));
    add_own(plan);
    plan.why = why(plan);
    return plan;
  }

 private:
  static RankRow least_of(const RanksPlan& plan) {
    return std::ranges::min(plan.rows, {}, &RankRow::device_bytes);
  }

  // The way that the user's own flags say, where it is none of the others and there may be one.
  void add_own(RanksPlan& plan) const {
    const distributed::Ranks ranks = ranks_of(plan.ranks);
    RankMode own = {.ranks = plan.ranks,
                    .zero_stage = config_.shards.stage,
                    .on_host = config_.offload.optimizer,
                    .group = plan.ranks,
                    .sequence = config_.sequence_parallel};
    if (own.zero_stage > 0)
      own.group = std::max(parameters::shard_ranks(config_, ranks),
                           parameters::block_ranks(config_, ranks));
    const bool is_there =
        std::ranges::any_of(plan.rows, [&](const RankRow& row) { return is_same(row.mode, own); });
    if (is_there || own.group <= 1 || plan.ranks % own.sequence != 0) return;
    add_rows(plan, taken(plan, {own}));
  }

  distributed::Ranks ranks_of(int64_t count) const {
    return {.size = static_cast<int>(count),
            .local_size = static_cast<int>(std::min(count, links_.ranks_per_machine))};
  }

  // Modes that `atelier train` takes. Why it takes no others is told.
  std::vector<RankMode> taken(RanksPlan& plan, std::vector<RankMode> modes) const {
    std::erase_if(modes, [&](const RankMode& mode) {
      const std::string reason = refusal(mode);
      if (!reason.empty() && std::ranges::count(plan.left_out, reason) == 0)
        plan.left_out.push_back(reason);
      return !reason.empty();
    });
    return modes;
  }

  // What `atelier train` would say before it loads anything; empty: nothing.
  std::string refusal(const RankMode& mode) const {
    const order::Training config = shared_settings(config_, mode);
    report::Problems problems;
    parameters::check_shards(config, ranks_of(mode.ranks), problems);
    model::check_sequence(model_, mode.sequence, config.process.attention, problems);
    try {
      problems.throw_if_any();
    } catch (const Error& error) {
      return error.message();
    }
    const std::string stage = "--zero_stage " + std::to_string(mode.zero_stage) + ": ";
    if (mode.ranks == 1 || mode.zero_stage < 3) return {};
    if (keeps_blocks(config.model.placement))
      return stage + "blocks would be divided, and --resident_blocks keeps whole ones";
    return {};
  }

  // Whether the user keeps blocks of denoisers or their controls on the device.
  bool keeps_blocks(const model::Placement& placement) const {
    if (placement.resident_denoiser_blocks.value_or(0) > 0) return true;
    return std::ranges::any_of(placement.resident_blocks, [&](const auto& entry) {
      return entry.second > 0 && !parameters::denoiser_of(model_, entry.first).empty();
    });
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
    RankRow row{.mode = mode, .sharing = sharing_flags(config_, mode)};
    row.flags = row.sharing;
    if (says_step_ && mode.sequence != config_.sequence_parallel)
      row.flags += " --global_batch_size " + std::to_string(config_.global_batch_size);
    PlanTarget target = target_;
    share_host(target, mode.ranks_of_machine(links_));
    const std::optional<Planned> planned = try_plan(sized, target);
    if (!planned) {
      const auto smallest = memory::smallest_plan(sized.run, INT64_MAX, target_.basis.profile);
      row.device_bytes = smallest ? limit_for(smallest->device_bytes) : 0;
      row.host_bytes = smallest ? smallest->host_bytes : 0;
      return row;
    }
    row.fits = true;
    const std::string placing = placing_flags(config_, *planned);
    row.flags += (row.flags.empty() || placing.empty() ? "" : " ") + placing;
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
    row.copied_seconds = phase->waited_seconds;
    row.exposed_seconds = phase->exchanged_seconds;
    if (!sized.exchanges.empty()) {
      row.sent_bytes = sized.exchanges[phase->strategy].sent_bytes;
      row.exposed_seconds += sized.exchanges[phase->strategy].exposed_seconds;
    }
    row.samples_per_second =
        static_cast<double>(sized.batch_size * config_.order.gradient_accumulation_steps) /
        row.seconds;
    return row;
  }

  // What decides.
  std::string why(const RanksPlan& plan) const {
    const std::string limit = report::bytes_text(target_.limits.device_bytes);
    const auto named = [](const RankRow& row) {
      if (!row.flags.empty()) return row.flags;
      return std::string(row.mode.zero_stage == 0 ? "no flag (DDP)" : "no flag");
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
    if (best.copied_seconds > kWorthIt * best.seconds)
      text += print("; %.0f %% of a step waits for copies from the host",
                    100 * best.copied_seconds / best.seconds);
    return text;
  }

  LoadedModel& model_;
  const TrainingBasis& basis_;
  const order::Training& config_;
  bool says_step_;
  const PlanTarget& target_;
  const LinkProfile& links_;
};

}  // namespace

PlannedRanks plan_ranks(const train::PreparedRun& run, const RanksOrder& ranks) {
  PlannedRanks planned{.target = training_target(run), .links = ranks.links};
  if (!planned.target.has_limit)
    throw Error(ErrorCode::kUnsupported, "--ranks: there is no device to plan for",
                "say one with --device_profile, or a limit with --vram");
  const int64_t most = std::ranges::max(ranks.counts);
  if (most > ranks.links.ranks_per_machine && ranks.links.remote_bytes_per_second == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "--network " + ranks.links.name + " was measured on one machine of " +
                    std::to_string(ranks.links.ranks_per_machine) + ", and --ranks says " +
                    std::to_string(most),
                "measure on two machines, or say infiniband or ethernet");
  const bool says_step = run.config.global_batch_size == 0 && run.config.resume.empty();
  TrainingBasis basis = training_basis(run);
  for (const int64_t count : ranks.counts) {
    const order::Training config = with_step(run.config, count);
    basis.config = &config;
    planned.plans.push_back(
        Planning(*run.model, basis, says_step, planned.target, planned.links).of(count));
  }
  return planned;
}

std::string rank_table(const PlannedRanks& planned) {
  const memory::DeviceProfile& device = planned.target.basis.profile;
  const LinkProfile& links = planned.links;
  std::string text =
      c10::str("plan for ranks on ", device.name, ": ",
               report::bytes_text(planned.target.limits.device_bytes), " each, ",
               links.ranks_per_machine, " to a machine; network ", links.name) +
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
      cells.push_back({c10::str(plan.ranks), row.flags.empty() ? "-" : row.flags,
                       report::bytes_text(row.device_bytes), "", report::bytes_text(row.host_bytes),
                       report::bytes_text(machine), "", "", "", "", "does not fit"});
      if (!row.fits) continue;
      cells.back()[3] = report::bytes_text(row.weight_bytes);
      cells.back()[6] = report::bytes_text(static_cast<int64_t>(row.sent_bytes));
      cells.back()[7] = report::time_text(row.exposed_seconds);
      cells.back()[8] = report::time_text(row.seconds);
      cells.back()[9] = print("%.3g", row.samples_per_second);
      cells.back()[10] = plan.best == i ? "choose" : "";
    }
  }
  text += report::columns(std::move(cells)) + "\n";
  for (const RanksPlan& plan : planned.plans) {
    const std::string ranks = c10::str(plan.ranks, " ranks: ");
    text += ranks + plan.why + "\n";
    for (const std::string& reason : plan.left_out) text += ranks + "left out: " + reason + "\n";
  }
  return text;
}

nlohmann::json rank_json(const PlannedRanks& planned) {
  nlohmann::json plans = nlohmann::json::array();
  for (const RanksPlan& plan : planned.plans) {
    nlohmann::json rows = nlohmann::json::array();
    for (const RankRow& row : plan.rows)
      rows.push_back({{"flags", row.flags},
                      {"sharing", row.sharing},
                      {"fits", row.fits},
                      {"device_bytes", row.device_bytes},
                      {"weight_bytes", row.weight_bytes},
                      {"host_bytes", row.host_bytes},
                      {"sent_bytes", row.sent_bytes},
                      {"exposed_seconds", row.exposed_seconds},
                      {"copied_seconds", row.copied_seconds},
                      {"seconds", row.seconds},
                      {"samples_per_second", row.samples_per_second}});
    plans.push_back({{"ranks", plan.ranks},
                     {"rows", rows},
                     {"left_out", plan.left_out},
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
