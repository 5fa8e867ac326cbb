#include "host/model/placement.h"

#include <algorithm>
#include <optional>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/report/text.h"
#include "host/weights/weight_loading.h"

namespace atelier::model {

using formats::quote_and_escape;
using memory::Place;

namespace {

std::optional<int64_t> parse_count(std::string_view text) {
  const auto count = report::parse_number<int64_t>(text);
  return count && *count >= 0 ? count : std::nullopt;
}

}  // namespace

PlaceByComponent parse_offload(const std::vector<std::string>& entries) {
  PlaceByComponent places;
  for (const std::string& entry : entries) {
    const std::string at = "--offload " + quote_and_escape(entry) + ": ";
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0)
      throw Error(ErrorCode::kInvalidArgument, at + "no component and place",
                  "write for instance dit=host,text_encoder=disk");
    const std::string place = entry.substr(equals + 1);
    if (place != "host" && place != "disk")
      throw Error(ErrorCode::kInvalidArgument, at + "the place is not known", "use host or disk");
    if (!places.emplace(entry.substr(0, equals), place == "host" ? Place::kHost : Place::kDisk)
             .second)
      throw Error(ErrorCode::kInvalidArgument, at + "the component is named twice", "name it once");
  }
  return places;
}

void parse_resident_blocks(const std::vector<std::string>& entries, Placement& placement) {
  for (const std::string& entry : entries) {
    const std::string at = "--resident_blocks " + quote_and_escape(entry) + ": ";
    const size_t equals = entry.find('=');
    const bool is_named = equals != std::string::npos;
    const auto count = parse_count(is_named ? entry.substr(equals + 1) : entry);
    if (!count || equals == 0)
      throw Error(ErrorCode::kInvalidArgument, at + "no number of blocks",
                  "write for instance 20, or dit=20,text_encoder=4");
    const bool is_new =
        is_named ? placement.resident_blocks.emplace(entry.substr(0, equals), *count).second
                 : !placement.resident_denoiser_blocks;
    if (!is_new)
      throw Error(ErrorCode::kInvalidArgument, at + "the component is named twice", "name it once");
    if (!is_named) placement.resident_denoiser_blocks = count;
  }
}

namespace {

bool contains(const std::vector<std::string>& names, const std::string& component) {
  return std::ranges::find(names, component) != names.end();
}

bool is_denoiser(const PlacedComponents& components, const std::string& component) {
  return contains(components.denoisers, component);
}

bool is_divided(const Placement& placement, const PlacedComponents& components,
                const std::string& component) {
  return placement.denoiser_shards > 1 &&
         (is_denoiser(components, component) || contains(components.controls, component));
}

using BlocksByComponent = std::map<std::string, int64_t, std::less<>>;

// Whether `component` is known and has blocks that can be somewhere else.
bool has_blocks(const std::string& at, const std::string& component,
                const PlacedComponents& components, report::Problems& problems) {
  const std::vector<std::string>& known = components.known;
  if (std::find(known.begin(), known.end(), component) == known.end()) {
    const std::string nearest = report::nearest_name(component, known);
    problems.add(at + "component " + quote_and_escape(component) + ": the family has " +
                     report::list_names(known),
                 nearest.empty() ? "" : "did you mean " + nearest + "?", ErrorCode::kNotFound);
    return false;
  }
  const auto found = components.blocks.find(component);
  if (found == components.blocks.end()) return false;  // not part of this run
  if (found->second > 0) return true;
  problems.add(at + "component " + quote_and_escape(component) +
                   ": it has no blocks that could rest elsewhere",
               "leave it out");
  return false;
}

// How many blocks of each component stay on the device.
BlocksByComponent residents_of(const Placement& placement, const PlacedComponents& components,
                               report::Problems& problems) {
  BlocksByComponent residents;
  const std::string at = "--resident_blocks: ";
  const auto add = [&](const std::string& component, int64_t count) {
    if (!placement.offload.contains(component) && !placement.offload_others) {
      problems.add(at + component + " stays on the device whole",
                   "name it with --offload, or leave it out");
      return;
    }
    if (count > 0 && is_divided(placement, components, component)) {
      problems.add(at + "blocks of " + component + " are divided among the processes",
                   "leave it out, or use --zero_stage 0");
      return;
    }
    if (!residents.emplace(component, count).second) {
      problems.add(at + component + " is named twice", "name it once");
      return;
    }
    const auto has = components.blocks.find(component);
    if (has != components.blocks.end() && has->second > 0 && count > has->second)
      problems.add(at + component + " has " + std::to_string(has->second) + " blocks, and " +
                       std::to_string(count) + " are to stay",
                   "use at most " + std::to_string(has->second));
  };
  if (placement.resident_denoiser_blocks) {
    for (const std::string& denoiser : components.denoisers) {
      if (components.blocks.contains(denoiser)) add(denoiser, *placement.resident_denoiser_blocks);
    }
  }
  for (const auto& [component, count] : placement.resident_blocks) add(component, count);
  return residents;
}

}  // namespace

std::map<std::string, memory::ResidencyPlan, std::less<>> plan_residency(
    const Placement& placement, const PlacedComponents& components, report::Problems& problems) {
  const int64_t prefetch = placement.prefetch.value_or(memory::ResidencyPlan().prefetch);
  if (prefetch < 0 || prefetch > 64)
    problems.add("--prefetch: " + std::to_string(prefetch) + " is not 0 to 64",
                 "2 hides copies well");
  const BlocksByComponent residents = residents_of(placement, components, problems);
  std::map<std::string, memory::ResidencyPlan, std::less<>> plans;
  PlaceByComponent places = placement.offload;
  for (const auto& [component, blocks] : components.blocks) {
    if (placement.offload_others && blocks > 0) places.emplace(component, Place::kHost);
  }
  for (const auto& [component, blocks] : components.blocks) {
    if (blocks > 0 && is_divided(placement, components, component))
      places.emplace(component, Place::kDevice);
  }
  const auto turns = std::make_shared<memory::ResidencyGroup>();
  for (const auto& [component, place] : places) {
    if (!has_blocks("--offload: ", component, components, problems)) continue;
    const int64_t blocks = components.blocks.at(component);
    const auto stay = residents.find(component);
    const bool takes_turns = placement.denoisers_take_turns && is_denoiser(components, component);
    const bool has_shards = is_divided(placement, components, component);
    memory::ResidencyPlan plan = memory::spread_residents(
        blocks, stay == residents.end() ? 0 : std::min(stay->second, blocks), place,
        std::max<int64_t>(prefetch, 0));
    if (has_shards) {
      plan.shards = placement.denoiser_shards;
      if (takes_turns) plan.turns = turns;
      plan.stays.resize(plan.blocks.size());
    } else if (takes_turns) {
      memory::take_turns(plan, turns, place);
    }
    plans.emplace(component, std::move(plan));
  }
  return plans;
}

std::set<const Weight*> weights_of(Block& block) {
  std::set<const Weight*> weights;
  block.visit_weights([&](const std::string&, Weight& weight) { weights.insert(&weight); });
  return weights;
}

int64_t keep_on_host_what_no_file_has(memory::ResidencyPlan& plan,
                                      const std::vector<Block*>& blocks,
                                      const weights::WeightBinding& binding,
                                      const files::Checkpoint& checkpoint, at::ScalarType dtype,
                                      const weights::WeightStorage& storage) {
  std::set<const Weight*> in_file;
  for (const weights::BoundWeight& bound : binding.weights) {
    if (weights::rests_in_file(bound, checkpoint, dtype, storage)) in_file.insert(bound.weight);
  }
  int64_t count = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (plan.blocks[i] != Place::kDisk) continue;
    const std::set<const Weight*> weights = weights_of(*blocks[i]);
    if (std::all_of(weights.begin(), weights.end(),
                    [&](const Weight* weight) { return in_file.contains(weight); }))
      continue;
    plan.blocks[i] = Place::kHost;
    ++count;
  }
  return count;
}

}  // namespace atelier::model
