#include "host/parameters/exchange_plan.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

#include <ATen/ATen.h>

#include "formats/escape.h"

namespace atelier::parameters {

using order::Training;

namespace {

// Ranks of a group; 0: the text is no number.
int group_size(const std::string& group, const distributed::Ranks& ranks) {
  if (group == "all") return ranks.size;
  if (group == "node") return ranks.local_size;
  int size = 0;
  const char* const end = group.data() + group.size();
  const auto [rest, failure] = std::from_chars(group.data(), end, size);
  return failure == std::errc() && rest == end ? std::max(size, 0) : 0;
}

}  // namespace

int shard_ranks(const Training& config, const distributed::Ranks& ranks) {
  const int stage = config.shards.stage;
  const bool is_shared =
      stage == 1 || stage == 2 || (stage == 3 && !config.trainable_models.empty());
  // A group that is none is a problem elsewhere.
  return is_shared && !ranks.is_alone() ? std::max(1, group_size(config.shards.group, ranks)) : 1;
}

int block_ranks(const Training& config, const distributed::Ranks& ranks) {
  const bool is_divided = config.shards.stage == 3 && !ranks.is_alone();
  return is_divided ? std::max(1, group_size(config.shards.group, ranks)) : 1;
}

bool makes_whole_groups(const Training& config, const distributed::Ranks& ranks) {
  const int size = group_size(config.shards.group, ranks);
  const bool is_shared = config.shards.stage > 0 && !ranks.is_alone();
  return size != 0 && (!is_shared || ranks.size % size == 0);
}

void check_shards(const Training& config, const distributed::Ranks& ranks,
                  report::Problems& problems) {
  const order::ShardSettings& shards = config.shards;
  if (!makes_whole_groups(config, ranks))
    problems.add("--zero_group: " + formats::quote_and_escape(shards.group) + " of " +
                     std::to_string(ranks.size) + " processes make up no groups of one size",
                 "use all, node, or a number that divides that of the processes");
  if (shard_ranks(config, ranks) > 1 && !optim::moves_shards(config.optimizer.kind))
    problems.add("--zero_stage " + std::to_string(shards.stage) +
                     ": this optimizer needs whole matrices, and moves no shards of them",
                 "use --zero_stage 0, or --optimizer_type AdamW8bit", ErrorCode::kUnsupported);
}

RankMode summing_mode(const RankMode& mode, bool is_of_factors) {
  if (!is_of_factors || mode.zero_stage < 3) return mode;
  RankMode summing = mode;
  summing.zero_stage = 0;
  summing.group = mode.ranks;
  return summing;
}

bool has_wholes_on_host(const RankMode& summing, bool is_wanted, bool rest_on_host) {
  return rest_on_host || (is_wanted && summing.zero_stage == 0);
}

bool has_shards_on_host(const RankMode& summing, bool wholes_on_host) {
  return summing.zero_stage > 0 && summing.on_host && !wholes_on_host;
}

TrainedBlocks::TrainedBlocks(model::LoadedModel& model, const Selection& selection) {
  std::map<const nn::Module*, const Block*> of_module;
  std::map<const Weight*, const Block*> of_weight;
  for (const model::LoadedPart& part : model.parts()) {
    for (Block* block : model.model().blocks(part.detection.component)) {
      blocks.push_back(block);
      block->visit([&](nn::Module& module) {
        of_module[&module] = block;
        for (const WeightPtr& weight : module.weights()) of_weight[weight.get()] = block;
      });
    }
  }
  std::set<std::string> denoisers;
  for (const auto& denoiser : running_denoisers(model, selection))
    denoisers.insert(denoiser.name());
  const auto add = [&](const std::string& component, const std::string& path, const auto& known,
                       const auto* key) {
    const std::string denoiser = denoiser_of(model, component);
    const auto found = known.find(key);
    ExchangedTensor tensor = {.name = component + "." + path,
                              .denoiser = denoisers.contains(denoiser) ? denoiser : "",
                              .block = found == known.end() ? nullptr : found->second};
    tensors.emplace(tensor.name, tensor);
  };
  for (const auto& trained : selection.weights)
    add(trained.component, trained.path, of_weight, trained.weight);
  for (const auto& layer : selection.layers) {
    for (const char* factor : {".lora_A", ".lora_B"})
      add(layer.component, layer.path + factor, of_module, layer.linear);
  }
}

std::vector<size_t> ExchangedTensors::buckets_of(const std::string& denoiser) const {
  std::vector<size_t> places;
  for (size_t bucket = 0; bucket < layout.buckets().size(); ++bucket) {
    if (std::ranges::any_of(layout.buckets()[bucket].positions,
                            [&](const auto& place) { return is_of(place.tensor, denoiser); }))
      places.push_back(bucket);
  }
  return places;
}

int64_t ExchangedTensors::bucket_bytes(const std::string& denoiser) const {
  int64_t bytes = 0;
  for (const size_t bucket : buckets_of(denoiser)) bytes += layout.buckets()[bucket].bytes();
  return bytes;
}

int64_t ExchangedTensors::tensor_bytes(const std::string& denoiser) const {
  int64_t bytes = 0;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    if (is_of(tensor, denoiser)) bytes += layout.bytes_of(tensor);
  }
  return bytes;
}

ArrivalOrder::ArrivalOrder(const std::vector<const Block*>& blocks,
                           const std::vector<std::vector<const Block*>>& needs)
    : buckets(needs.size()) {
  std::map<const Block*, size_t> places = {{nullptr, 0}};
  for (const Block* block : blocks) places.emplace(block, places.size());
  const auto place_of = [&](const Block* block) { return places.at(block); };
  for (const std::vector<const Block*>& of_bucket : needs)
    first.push_back(std::ranges::min(of_bucket, {}, place_of));
  std::iota(buckets.begin(), buckets.end(), size_t{0});
  // Later buckets have earlier tensors.
  std::ranges::reverse(buckets);
  std::ranges::stable_sort(buckets, {}, [&](size_t bucket) { return place_of(first[bucket]); });
  for (size_t place = 0; place < buckets.size(); ++place) {
    for (const Block* block : needs[buckets[place]]) ends[block] = place + 1;
  }
}

ArrivalOrder arrival_order(const std::vector<const Block*>& blocks,
                           const ExchangedTensors& tensors) {
  std::vector<std::vector<const Block*>> needs;
  for (const distributed::FlatLayout::Bucket& bucket : tensors.layout.buckets()) {
    std::vector<const Block*>& of_bucket = needs.emplace_back();
    for (const distributed::FlatLayout::Position& place : bucket.positions)
      of_bucket.push_back(tensors.tensors[place.tensor].block);
  }
  return {blocks, needs};
}

void cut(optim::Parameter& whole, const distributed::FlatLayout::Extent& extent, at::Tensor leaf) {
  if (leaf.scalar_type() != whole.leaf.scalar_type()) whole.master_of = whole.dtype();
  whole.shard = optim::Shard{whole.leaf.sizes().vec(), extent.begin};
  whole.leaf = std::move(leaf);
}

std::vector<optim::Group> moved_by(const ExchangePlan& plan, std::vector<optim::Group> wholes,
                                   int part, optim::MasterWeights masters) {
  if (plan.mode.zero_stage == 0) return wholes;
  const bool has_masters =
      masters == optim::MasterWeights::kFp32 && has_shards_on_host(plan.mode, plan.wholes_on_host);
  std::map<std::string, distributed::FlatLayout::Extent> extents;
  std::set<std::string> mastered;
  for (const ExchangedTensors* exchanged : {&plan.wholes, &plan.divided}) {
    for (size_t tensor = 0; tensor < exchanged->tensors.size(); ++tensor) {
      const std::string& name = exchanged->tensors[tensor].name;
      extents.emplace(name, exchanged->layout.extent(tensor, part));
      if (has_masters && exchanged == &plan.wholes) mastered.insert(name);
    }
  }
  for (optim::Group& group : wholes) {
    for (optim::Parameter& parameter : group.parameters) {
      const distributed::FlatLayout::Extent& extent = extents.at(parameter.name);
      const at::ScalarType dtype =
          mastered.contains(parameter.name) ? at::kFloat : parameter.leaf.scalar_type();
      cut(parameter, extent, at::empty({extent.count}, at::TensorOptions(at::kMeta).dtype(dtype)));
    }
  }
  return wholes;
}

}  // namespace atelier::parameters
