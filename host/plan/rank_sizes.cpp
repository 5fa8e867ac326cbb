#include "host/plan/rank_sizes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace atelier::plan {

using memory::exchange_seconds;
using memory::LinkProfile;

namespace {

// Buckets of gradients that are under way, and of divided blocks: what one gets, what is laid out
// of that, and what the one before sends.
constexpr double kBuckets = 4, kBucketBytes = 25 * 1024.0 * 1024.0, kBlocksUnderWay = 3;

}  // namespace

HeldBytes held_bytes(const RankMode& mode, const TrainedBytes& whole) {
  const auto part = [&](int from_stage, double bytes) {
    return mode.zero_stage >= from_stage ? bytes / static_cast<double>(mode.group) : bytes;
  };
  const double gradients = part(2, whole.gradients);
  const double moved = gradients + part(1, whole.states);
  const double values = part(3, whole.values) + whole.beside;
  if (mode.on_host) return {values, moved, gradients};
  return {values + moved, 0.0, gradients};
}

double sent_bytes(const RankMode& mode, const TrainedBytes& whole, double gathered,
                  double batches) {
  const auto part = [](int64_t size) {
    return static_cast<double>(size - 1) / static_cast<double>(size);
  };
  const double n = part(mode.group);
  const double between =
      2 * part(mode.replicas()) * whole.gradients / static_cast<double>(mode.group);
  switch (mode.zero_stage) {
    case 0:
      return 2 * n * whole.gradients;
    case 1:
      return n * (whole.gradients + whole.values) + between;
    case 2:
      return n * (batches * whole.gradients + whole.values) + between;
    default:
      return n * batches * (whole.gradients + 2 * gathered) + between;
  }
}

double under_way_bytes(const RankMode& mode,
                       const std::vector<memory::PlannedComponent>& components,
                       const std::map<std::string, double>& gradients_of, double gradients) {
  if (mode.group == 1 && mode.ranks == 1) return 0.0;
  double bytes = kBuckets * kBucketBytes;
  for (const memory::PlannedComponent& component : components) {
    if (mode.zero_stage < 3 || !gradients_of.contains(component.name)) continue;
    for (const int64_t block : component.storages.front().blocks)
      bytes = std::max(bytes, kBlocksUnderWay * static_cast<double>(block));
  }
  return std::min(gradients, bytes);
}

memory::RankGroup group_of(const RankMode& mode, const LinkProfile& links) {
  return memory::nearest_ranks(links, mode.group);
}

void shard_blocks(memory::PlannedComponent& component, const RankMode& mode,
                  const LinkProfile& links) {
  for (memory::StoredComponent& stored : component.storages) {
    stored.kept.clear();
    for (const int64_t bytes : stored.blocks)
      stored.gathers.push_back(
          exchange_seconds(links, group_of(mode, links), static_cast<double>(bytes)));
  }
  component.may_stream = true;
  component.parts = static_cast<int>(mode.group);
  component.resident.reset();
  component.others = memory::Place::kDevice;
}

std::vector<double> sending_seconds(const memory::StoredComponent& component, double gradients,
                                    const RankMode& mode, const LinkProfile& links) {
  const auto all = static_cast<double>(
      std::accumulate(component.blocks.begin(), component.blocks.end(), component.outside));
  std::vector<double> seconds;
  for (size_t i = 0; i < component.blocks.size(); ++i) {
    // What is outside of blocks comes with the last block of the backward pass.
    const int64_t bytes = component.blocks[i] + (i == 0 ? component.outside : 0);
    const double once = exchange_seconds(links, group_of(mode, links),
                                         gradients * static_cast<double>(bytes) / all);
    seconds.push_back(mode.zero_stage == 0 ? 2 * once : once);
  }
  return seconds;
}

double ending_seconds(const RankMode& mode, const TrainedBytes& whole, const LinkProfile& links) {
  double seconds = 0.0;
  if (mode.zero_stage == 1 || mode.zero_stage == 2)
    seconds += exchange_seconds(links, group_of(mode, links), whole.values);
  if (mode.replicas() > 1)
    seconds += 2 * exchange_seconds(links, memory::one_of_each_machine(mode.replicas()),
                                    whole.gradients / static_cast<double>(mode.group));
  return seconds;
}

double share_rows(memory::Strategy& strategy, const RankMode& mode,
                  const SharedAttention& attention, const LinkProfile& links, double& sends) {
  const auto parts = static_cast<double>(mode.sequence);
  const memory::RankGroup group = memory::nearest_ranks(links, mode.sequence);
  const double keys = attention.bytes * static_cast<double>(attention.key_heads) /
                      static_cast<double>(attention.heads);
  const bool goes_around = attention.key_heads % mode.sequence != 0;
  // For a pass forward; what goes around costs what an all-gather of it would.
  const double bytes = goes_around ? 2 * keys : 2 * (attention.bytes + keys) / parts;
  const double once = goes_around ? exchange_seconds(links, group, 2 * keys)
                                  : 2 * exchange_seconds(links, group, attention.bytes / parts) +
                                        2 * exchange_seconds(links, group, keys / parts);
  strategy.device_bytes = std::llround(static_cast<double>(strategy.device_bytes) / parts);
  strategy.host_bytes = std::llround(static_cast<double>(strategy.host_bytes) / parts);
  strategy.seconds /= parts;
  double exchanges = 0;
  const auto share = [&](std::map<std::string, std::vector<double>>& blocks, double times) {
    for (auto& [name, seconds] : blocks) {
      for (double& of_block : seconds) {
        of_block = of_block / parts + times * once;
        exchanges += times;
      }
    }
  };
  share(strategy.forward, 1);
  // The backward pass exchanges gradients, and where it computes again, what it did before.
  share(strategy.backward, (goes_around ? 2 : 1) + (strategy.needs_all_blocks ? 0 : 1));
  exchanges *= strategy.repeats;
  sends = exchanges * bytes * (parts - 1) / parts;
  return exchanges * once;
}

RankMode summing_mode(const RankMode& mode, bool is_of_factors) {
  if (!is_of_factors || mode.zero_stage < 3) return mode;
  RankMode summing = mode;
  summing.zero_stage = 0;
  summing.group = mode.ranks;
  return summing;
}

StepExchange share_step(const SharedStep& step,
                        const std::vector<memory::PlannedComponent>& components,
                        const RankMode& mode, const LinkProfile& links,
                        memory::Strategy& strategy) {
  StepExchange done;
  if (mode.sequence > 1)
    done.exposed_seconds = share_rows(strategy, mode, step.attention, links, done.sent_bytes);
  const RankMode summing = summing_mode(mode, step.is_of_factors);
  // Divided blocks come and send in each run, of which distillation makes several in a batch.
  const double passes = summing.zero_stage == 3 ? strategy.repeats : step.batches;
  strategy.sending_repeats = summing.zero_stage >= 2 ? passes : 1.0;
  double gathered = 0.0;
  for (const memory::PlannedComponent& component : components) {
    const memory::StoredComponent& stored = component.storages.front();
    if (!stored.gathers.empty())
      gathered += static_cast<double>(
          std::accumulate(stored.blocks.begin(), stored.blocks.end(), int64_t{0}));
    const auto gradients = step.gradients_of.find(component.name);
    if (gradients != step.gradients_of.end() && strategy.backward.contains(component.name))
      strategy.sends[component.name] = sending_seconds(stored, gradients->second, summing, links);
  }
  const double ending = ending_seconds(summing, step.whole, links);
  strategy.seconds += ending;
  done.exposed_seconds += ending;
  done.sent_bytes += sent_bytes(summing, step.whole, gathered, passes);
  if (step.is_of_factors && mode.zero_stage == 3)
    done.sent_bytes += sent_bytes(mode, {}, gathered, strategy.repeats);
  return done;
}

}  // namespace atelier::plan
