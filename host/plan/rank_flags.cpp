#include "host/plan/rank_flags.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "host/plan/plan_run.h"
#include "host/report/text.h"

namespace atelier::plan {
namespace {

using memory::ActivationBudget;
using memory::ComponentChoice;
using memory::Place;
using order::Training;
using parameters::Layout;

// Words between spaces.
class Words {
 public:
  void add(const std::string& word) { text_ += (text_.empty() ? "" : " ") + word; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

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

void add_activations(Words& words, const Layout& asked, const Layout& told) {
  if (told.use_gradient_checkpointing && !asked.use_gradient_checkpointing)
    return words.add("--use_gradient_checkpointing");
  // Nothing is computed again where nobody says so.
  constexpr ActivationBudget kUnsaid;
  const auto text_of = [&](const Layout& layout) {
    return budget_text(layout.activation_budget.value_or(kUnsaid));
  };
  if (text_of(told) != text_of(asked)) words.add("--activation_memory_budget " + text_of(told));
}

void add_storages(Words& words, const Layout& asked, const Layout& told) {
  if (told.weights.storage == asked.weights.storage) return;
  std::string entries;
  for (const auto& [component, storage] : told.weights.storage)
    add_entry(entries, component, std::string(weights::storage_name(storage)));
  words.add("--storage " + entries);
}

// Where the blocks of a component are to rest, and how many are to stay on the device; nullopt: it
// is not said.
struct Said {
  std::optional<Place> place;
  std::optional<int64_t> resident;
};

Said said_of(const model::Placement& placement, const std::string& component) {
  Said said;
  if (const auto place = placement.offload.find(component); place != placement.offload.end()) {
    said.place = place->second;
  } else if (placement.offload_others) {
    said.place = Place::kHost;
  }
  if (const auto found = placement.resident_blocks.find(component);
      found != placement.resident_blocks.end())
    said.resident = found->second;
  return said;
}

// As it is planned.
Said planned_of(const ComponentChoice& choice, const Said& said, bool keeps_places) {
  if (choice.num_blocks == 0) return said;
  if (choice.parts > 1)
    return {choice.others == Place::kHost ? std::optional(Place::kHost) : said.place, {}};
  const bool streams = choice.resident < choice.num_blocks;
  if (!streams && !said.place) return said;
  Said planned = {streams ? choice.others : said.place, choice.resident};
  // What is sent away has no blocks on the device where nobody says how many.
  if (keeps_places && (choice.resident == 0 || !streams)) planned.resident = said.resident;
  return planned;
}

void add_places(Words& words, const Training& asked, const PlannedResult& planned,
                const PlanTarget& target) {
  const model::Placement& placement = asked.model.placement;
  std::string places, residents;
  bool has_moved = false, has_left = false;
  std::optional<int64_t> prefetch;  // the same of all
  for (const ComponentChoice& choice : planned.plan.components) {
    const Said said = said_of(placement, choice.name);
    const Said told = planned_of(choice, said, target.basis.keeps_places);
    if (choice.resident < choice.num_blocks) prefetch = choice.prefetch;
    has_moved |= told.place != said.place;
    has_left |= told.resident != said.resident;
    if (told.place) add_entry(places, choice.name, *told.place == Place::kHost ? "host" : "disk");
    if (told.resident) add_entry(residents, choice.name, std::to_string(*told.resident));
  }
  if (has_moved) words.add("--offload " + places);
  const bool is_said_of_denoisers = placement.resident_denoiser_blocks.has_value();
  if (has_left && !is_said_of_denoisers) words.add("--resident_blocks " + residents);
  if (prefetch && !asked.memory.says_prefetch) words.add("--prefetch " + std::to_string(*prefetch));
}

}  // namespace

Training with_step(const Training& asked, int64_t ranks) {
  Training config = asked;
  if (asked.global_batch_size > 0 || ranks == 1) return config;
  const int64_t parts = ranks % asked.sequence_parallel == 0 ? asked.sequence_parallel : 1;
  if (asked.resume.empty()) config.order.gradient_accumulation_steps *= ranks / parts;
  config.global_batch_size =
      static_cast<int>(config.order.batch_size * config.order.gradient_accumulation_steps);
  return config;
}

Training shared_settings(const Training& asked, const RankMode& mode) {
  Training config = asked;
  config.shards.stage = mode.zero_stage;
  // A group of another number is the user's.
  if (mode.zero_stage > 0 && config.shards.group != std::to_string(mode.group))
    config.shards.group = mode.group < mode.ranks ? "node" : "all";
  config.offload.optimizer = mode.on_host;
  config.sequence_parallel = static_cast<int>(mode.sequence);
  return config;
}

std::string sharing_flags(const Training& asked, const RankMode& mode) {
  const Training told = shared_settings(asked, mode);
  Words words;
  if (told.shards.stage != asked.shards.stage)
    words.add("--zero_stage " + std::to_string(told.shards.stage));
  if (told.shards.group != asked.shards.group) words.add("--zero_group " + told.shards.group);
  if (told.offload.optimizer != asked.offload.optimizer)
    words.add(told.offload.optimizer ? "--optimize_on_cpu" : "--optimize_on_cpu false");
  if (told.sequence_parallel != asked.sequence_parallel)
    words.add("--sequence_parallel " + std::to_string(told.sequence_parallel));
  return words.text();
}

std::string placing_flags(const Training& asked, const PlannedResult& planned,
                          const PlanTarget& target) {
  const Layout said = parameters::said_layout(asked), told = layout_of(asked, {planned, target});
  Words words;
  add_activations(words, said, told);
  add_storages(words, said, told);
  add_places(words, asked, planned, target);
  return words.text();
}

}  // namespace atelier::plan
