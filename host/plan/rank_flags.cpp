#include "host/plan/rank_flags.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <c10/util/StringUtil.h>

#include "host/plan/plan_run.h"
#include "host/report/text.h"

namespace atelier::plan {
namespace {

using memory::ActivationBudget;
using memory::ComponentChoice;
using memory::Place;
using order::Training;
using parameters::Layout;

// Entries between commas.
void add_entry(std::string& list, const std::string& name, const std::string& value) {
  list += (list.empty() ? "" : ",") + name + "=" + value;
}

// In whole MiB, no more than it is.
std::string budget_text(const ActivationBudget& budget) {
  switch (budget.kind) {
    case ActivationBudget::Kind::kAuto:
      return "auto";
    case ActivationBudget::Kind::kNone:
      return "none";
    case ActivationBudget::Kind::kFraction:
      return budget.fraction == 0 ? "full" : report::number_text(budget.fraction);
    case ActivationBudget::Kind::kBytes:
      return std::to_string(std::max<int64_t>(1, budget.bytes >> 20)) + "MiB";
  }
  return {};
}

void add_activations(std::vector<std::string>& words, const Layout& order, const Layout& planned) {
  if (planned.use_gradient_checkpointing && !order.use_gradient_checkpointing)
    return words.push_back("--use_gradient_checkpointing");
  // Nothing is computed again where nobody says so.
  constexpr ActivationBudget kUnsaid;
  const auto text_of = [&](const Layout& layout) {
    return budget_text(layout.activation_budget.value_or(kUnsaid));
  };
  if (text_of(planned) != text_of(order))
    words.push_back("--activation_memory_budget " + text_of(planned));
}

void add_storages(std::vector<std::string>& words, const Layout& order, const Layout& planned) {
  if (planned.weights.storage == order.weights.storage) return;
  std::string entries;
  for (const auto& [component, storage] : planned.weights.storage)
    add_entry(entries, component, std::string(weights::storage_name(storage)));
  words.push_back("--storage " + entries);
}

// Where the blocks of a component are to rest, and how many are to stay on the device; nullopt: the
// order leaves it open.
struct BlockPlaces {
  std::optional<Place> place;
  std::optional<int64_t> resident;
};

BlockPlaces ordered_places(const model::Placement& placement, const std::string& component) {
  BlockPlaces ordered;
  if (const auto place = placement.offload.find(component); place != placement.offload.end()) {
    ordered.place = place->second;
  } else if (placement.offload_others) {
    ordered.place = Place::kHost;
  }
  if (const auto found = placement.resident_blocks.find(component);
      found != placement.resident_blocks.end())
    ordered.resident = found->second;
  return ordered;
}

// Where the blocks of a component rest by its plan, beside what the order says.
BlockPlaces planned_places(const ComponentChoice& choice, const BlockPlaces& ordered,
                           bool keeps_places) {
  if (choice.num_blocks == 0) return ordered;
  if (choice.shards > 1)
    return {choice.others == Place::kHost ? std::optional(Place::kHost) : ordered.place, {}};
  const bool streams = choice.resident < choice.num_blocks;
  if (!streams && !ordered.place) return ordered;
  BlockPlaces planned = {streams ? choice.others : ordered.place, choice.resident};
  // What is sent away has no blocks on the device where nobody says how many.
  if (keeps_places && (choice.resident == 0 || !streams)) planned.resident = ordered.resident;
  return planned;
}

void add_places(std::vector<std::string>& words, const Training& order, const Planned& planned) {
  const model::Placement& placement = order.model.placement;
  std::string places, residents;
  bool has_moved = false, has_left = false;
  std::optional<int64_t> prefetch;  // the same of all
  for (const ComponentChoice& choice : planned.plan.components) {
    const BlockPlaces ordered = ordered_places(placement, choice.name);
    const BlockPlaces now = planned_places(choice, ordered, planned.target.basis.keeps_places);
    if (choice.resident < choice.num_blocks) prefetch = choice.prefetch;
    has_moved |= now.place != ordered.place;
    has_left |= now.resident != ordered.resident;
    if (now.place) add_entry(places, choice.name, *now.place == Place::kHost ? "host" : "disk");
    if (now.resident) add_entry(residents, choice.name, std::to_string(*now.resident));
  }
  if (has_moved) words.push_back("--offload " + places);
  if (has_left && !placement.resident_denoiser_blocks)
    words.push_back("--resident_blocks " + residents);
  if (prefetch && !placement.prefetch) words.push_back("--prefetch " + std::to_string(*prefetch));
}

}  // namespace

Training shared_settings(const Training& order, const RankMode& mode) {
  Training config = order;
  config.shards.stage = mode.zero_stage;
  // A group of another number is the user's.
  if (mode.zero_stage > 0 && config.shards.group != std::to_string(mode.group))
    config.shards.group = mode.group < mode.ranks ? "node" : "all";
  config.offload.optimizer = mode.on_host;
  config.sequence_parallel = static_cast<int>(mode.sequence);
  return config;
}

std::string sharing_flags(const Training& order, const RankMode& mode) {
  const Training shared = shared_settings(order, mode);
  std::vector<std::string> words;
  if (shared.shards.stage != order.shards.stage)
    words.push_back("--zero_stage " + std::to_string(shared.shards.stage));
  if (shared.shards.group != order.shards.group)
    words.push_back("--zero_group " + shared.shards.group);
  if (shared.offload.optimizer != order.offload.optimizer)
    words.push_back(shared.offload.optimizer ? "--optimize_on_cpu" : "--optimize_on_cpu false");
  if (shared.sequence_parallel != order.sequence_parallel)
    words.push_back("--sequence_parallel " + std::to_string(shared.sequence_parallel));
  return c10::Join(" ", words);
}

std::string placing_flags(const Training& order, const Planned& planned) {
  const Layout unplanned = parameters::unplanned_layout(order);
  const Layout layout = planned_layout(unplanned, order, planned);
  std::vector<std::string> words;
  add_activations(words, unplanned, layout);
  add_storages(words, unplanned, layout);
  add_places(words, order, planned);
  return c10::Join(" ", words);
}

}  // namespace atelier::plan
