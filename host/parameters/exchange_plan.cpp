#include "host/parameters/exchange_plan.h"

#include <charconv>
#include <numeric>

#include "formats/escape.h"
#include "host/optim/optimizer.h"

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
  const auto add = [this](const std::string& name, const auto& known, const auto* key) {
    if (const auto found = known.find(key); found != known.end()) of.emplace(name, found->second);
  };
  for (const auto& trained : selection.weights)
    add(trained.component + "." + trained.path, of_weight, trained.weight);
  for (const auto& layer : selection.layers) {
    for (const char* factor : {".lora_A", ".lora_B"})
      add(layer.component + "." + layer.path + factor, of_module, layer.linear);
  }
}

const Block* TrainedBlocks::find(const std::string& name) const {
  const auto found = of.find(name);
  return found == of.end() ? nullptr : found->second;
}

ArrivalOrder::ArrivalOrder(const std::vector<const Block*>& blocks,
                           const std::vector<std::vector<const Block*>>& needs)
    : buckets(needs.size()) {
  std::map<const Block*, size_t> places = {{nullptr, 0}};
  for (const Block* block : blocks) places.emplace(block, places.size());
  std::vector<size_t> first(needs.size(), blocks.size() + 1);  // place of who needs it first
  for (size_t bucket = 0; bucket < needs.size(); ++bucket) {
    for (const Block* block : needs[bucket])
      first[bucket] = std::min(first[bucket], places.at(block));
  }
  std::iota(buckets.begin(), buckets.end(), size_t{0});
  // Later buckets have earlier tensors.
  std::ranges::reverse(buckets);
  std::ranges::stable_sort(buckets, {}, [&](size_t bucket) { return first[bucket]; });
  for (size_t place = 0; place < buckets.size(); ++place) {
    for (const Block* block : needs[buckets[place]]) ends[block] = place + 1;
  }
}

ArrivalOrder arrival_order(const TrainedBlocks& blocks, const distributed::FlatLayout& layout,
                           const std::vector<std::string>& names) {
  std::vector<std::vector<const Block*>> needs;
  for (const distributed::FlatLayout::Bucket& bucket : layout.buckets()) {
    std::vector<const Block*>& of_bucket = needs.emplace_back();
    for (const distributed::FlatLayout::Position& place : bucket.positions)
      of_bucket.push_back(blocks.find(names[place.tensor]));
  }
  return {blocks.blocks, needs};
}

}  // namespace atelier::parameters
