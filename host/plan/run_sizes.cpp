#include "host/plan/run_sizes.h"

#include <algorithm>
#include <map>
#include <set>

#include "atelier/nn/module.h"

#include "host/model/components.h"
#include "host/weights/weight_loading.h"

namespace atelier::plan {
namespace {

using memory::PlannedComponent;
using memory::StoredComponent;
using model::LoadedModel;
using weights::Storage;

constexpr int64_t kAlignment = 256;  // of a tensor in a slab

int64_t rounded(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The bytes of each weight on the device.
std::map<const Weight*, int64_t> bytes_of(LoadedModel& model, const model::LoadedPart& part,
                                          Storage storage) {
  const std::string& name = part.detection.component;
  const weights::WeightStorage stored = model.weight_storage(name, storage);
  std::map<const Weight*, int64_t> bytes;
  for (const weights::BoundWeight& bound : model.binding(name).weights) {
    for (const int64_t each :
         weights::resting_bytes(bound, part.checkpoint, model.dtype(name), stored))
      bytes[bound.weight] += rounded(each);
  }
  return bytes;
}

StoredComponent size_component(LoadedModel& model, const model::LoadedPart& part, Storage storage,
                               const std::set<const Weight*>& level_weights) {
  const std::string& name = part.detection.component;
  const std::map<const Weight*, int64_t> bytes_by_weight = bytes_of(model, part, storage);
  StoredComponent sized;
  sized.storage = weights::storage_name(storage);
  std::set<const Weight*> in_blocks;
  for (Block* block : model.model().blocks(name)) {
    int64_t bytes = 0, once = 0;
    block->visit_weights([&](const std::string&, Weight& weight) {
      const int64_t count = bytes_by_weight.at(&weight);
      bytes += count;
      if (level_weights.contains(&weight)) once += count;
      in_blocks.insert(&weight);
    });
    sized.blocks.push_back(bytes);
    sized.once.push_back(once);
  }
  model.model().component(name).visit_weights([&](const std::string&, Weight& weight) {
    if (!in_blocks.contains(&weight)) sized.outside += bytes_by_weight.at(&weight);
  });
  return sized;
}

void take_order(PlannedComponent& component, const PlanBasis& basis, Role role) {
  const model::Placement& placement = basis.placement;
  const bool is_denoiser = role == Role::kDenoiser;
  const auto place = placement.offload.find(component.name);
  const bool is_sent_away = place != placement.offload.end();
  if (is_sent_away) {
    component.others = place->second;
  } else if (placement.offload_others) {
    component.others = memory::Place::kHost;
  }
  const auto resident = placement.resident_blocks.find(component.name);
  component.may_stream |= is_sent_away;
  component.takes_turns = is_denoiser && placement.denoisers_take_turns;
  if (is_denoiser || role == Role::kControl) component.shards = placement.denoiser_shards;
  if (component.shards > 1 && component.others) component.others = memory::Place::kHost;
  if (resident != placement.resident_blocks.end()) {
    component.resident = resident->second;
  } else if (is_denoiser && placement.resident_denoiser_blocks) {
    component.resident = placement.resident_denoiser_blocks;
  } else if (basis.keeps_places && component.others) {
    component.resident = 0;
  }
}

}  // namespace

int64_t batches_of_rank(const order::Training& config, const RankMode& mode) {
  const int64_t batches = config.order.gradient_accumulation_steps;
  return config.global_batch_size == 0 ? batches : (batches + mode.batches() - 1) / mode.batches();
}

memory::PlannedRun size_components(LoadedModel& model, const PlanBasis& basis,
                                   bool prepares_levels) {
  std::set<const Weight*> level_weights;
  for (const model::RangedDenoiser& denoiser : model.stages().denoisers) {
    if (!prepares_levels) break;
    for (const WeightPtr& weight : model.model().level_weights(denoiser.name()))
      level_weights.insert(weight.get());
  }
  memory::PlannedRun run;
  run.prefetch = basis.placement.prefetch;
  for (const model::LoadedPart& part : model.parts()) {
    PlannedComponent component{.name = part.detection.component};
    const bool can_be_stored = !weights::storable_weights(model.model(), component.name).empty();
    const Storage asked = can_be_stored ? model.storage(component.name) : Storage::kPlain;
    std::vector<Storage> storages = {asked};
    const bool is_open =
        can_be_stored && asked == Storage::kPlain && !basis.stored.contains(component.name);
    if (is_open)
      storages.insert(storages.end(), basis.allowed_storages.begin(), basis.allowed_storages.end());
    for (const Storage storage : storages)
      component.storages.push_back(size_component(model, part, storage, level_weights));
    const Role role = model::find_component(model.family(), component.name)->role;
    component.may_stream = role != Role::kVae;
    take_order(component, basis, role);
    round_blocks(component);
    run.components.push_back(std::move(component));
  }
  return run;
}

}  // namespace atelier::plan
