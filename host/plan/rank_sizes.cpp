#include "host/plan/rank_sizes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace atelier::plan {

using memory::exchange_seconds;
using memory::LinkProfile;

namespace {

// Whether ranks move parts of values that all of them compute with.
bool brings_values(const RankMode& mode) {
  return mode.zero_stage == 1 || mode.zero_stage == 2;
}

}  // namespace

HeldBytes held_bytes(const RankMode& mode, const TrainedBytes& whole) {
  const auto part = [&](int from_stage, double bytes) {
    return mode.zero_stage >= from_stage ? bytes / static_cast<double>(mode.group) : bytes;
  };
  const double gradients = part(2, whole.gradients);
  const double moved = gradients + part(1, whole.states);
  const double values = part(3, whole.values);
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

UnderWay under_way_bytes(const parameters::ExchangePlan& exchange, int64_t passes, double block,
                         bool through_host) {
  const RankMode& mode = exchange.mode;
  if (mode.ranks == 1) return {};
  const int64_t sends = exchange.sends_each_pass() ? passes : 1;
  const auto most_bytes = [&](size_t buckets, int64_t times) {
    return static_cast<double>(exchange.layout.most_bytes(buckets, static_cast<size_t>(times)));
  };
  const double bucket = most_bytes(1, 1), at_once = most_bytes(parameters::kBucketsUnderWay, sends);
  if (mode.zero_stage == 0) return {.gradients = at_once};
  // Beside a bucket this rank's part of its sum and, through host memory, what each rank has of it.
  const double beside = 1.0 / static_cast<double>(mode.group) + (through_host ? 1.0 : 0.0);
  const double values = (1.0 + beside) * most_bytes(parameters::kBucketsUnderWay, 1);
  // In stage 1 gradients count whole until they are sent. Otherwise parts of sums alone do.
  if (mode.zero_stage == 1) return {std::max(bucket, beside * at_once), values};
  const double in_step =
      static_cast<double>(sends) * most_bytes(exchange.layout.buckets().size(), 1);
  const double collected = std::min(bucket, in_step - at_once);
  return {collected + (1.0 + beside) * at_once + (2.0 + beside) * block, values};
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
  component.shards = static_cast<int>(mode.group);
  component.resident.reset();
  if (component.others) component.others = memory::Place::kHost;
}

void divide_rows(memory::Strategy& strategy, const RankMode& mode) {
  const auto parts = static_cast<double>(mode.sequence);
  strategy.device_bytes = std::llround(static_cast<double>(strategy.device_bytes) / parts);
  strategy.host_bytes = std::llround(static_cast<double>(strategy.host_bytes) / parts);
  strategy.seconds /= parts;
  for (auto* const blocks : {&strategy.forward, &strategy.backward}) {
    for (auto& [name, seconds] : *blocks) {
      for (double& of_block : seconds) of_block /= parts;
    }
  }
}

namespace {

// What a rank sends around one attention in its forward pass, and the seconds in which it waits
// for others there and in the backward pass.
struct RowExchange {
  double bytes = 0.0, forward = 0.0, backward = 0.0;
  double times_backward = 1.0;  // as many bytes as forward
};

// Before attention and behind it.
RowExchange around_attention(const SharedAttention& attention, double keys, int64_t ranks,
                             const LinkProfile& links) {
  const memory::RankGroup group = memory::nearest_ranks(links, ranks);
  const auto parts = static_cast<double>(ranks);
  const double waits = 2 * exchange_seconds(links, group, attention.bytes / parts) +
                       2 * exchange_seconds(links, group, keys / parts);
  return {.bytes = 2 * (attention.bytes + keys) / parts * (parts - 1) / parts,
          .forward = waits,
          .backward = waits};
}

// In P - 1 hops from rank to rank, each while the rows of one rank are attended to. In the backward
// pass keys and values make them, and one attention later their gradients, the last of which
// nothing is computed beside.
RowExchange around_ranks(const SharedAttention& attention, double keys, int64_t ranks,
                         const LinkProfile& links) {
  constexpr double kBackward = 2.5;  // of the products of a forward pass
  const auto parts = static_cast<double>(ranks), hops = parts - 1;
  const double hop = exchange_seconds(links, memory::nearest_ranks(links, ranks), 2 * keys) / hops;
  const double beside = attention.seconds / (parts * parts);
  return {.bytes = 2 * keys * hops / parts,
          .forward = hops * std::max(0.0, hop - beside),
          .backward = hop + std::max(0.0, (2 * hops - 1) * hop - hops * kBackward * beside),
          .times_backward = 2.0};
}

}  // namespace

double share_rows(memory::Strategy& strategy, const RankMode& mode,
                  const SharedAttention& attention, const LinkProfile& links, double& sends) {
  divide_rows(strategy, mode);
  const double keys = attention.bytes * static_cast<double>(attention.key_heads) /
                      static_cast<double>(attention.heads);
  const bool goes_around = attention.key_heads % mode.sequence != 0;
  const RowExchange once = goes_around ? around_ranks(attention, keys, mode.sequence, links)
                                       : around_attention(attention, keys, mode.sequence, links);
  // The backward pass exchanges gradients, and where it computes again, what it did before.
  const double again = strategy.needs_all_blocks ? 0 : 1;
  double waits = 0.0;
  sends = 0.0;
  const auto share = [&](std::map<std::string, std::vector<double>>& blocks, double seconds,
                         double times) {
    for (auto& [name, of_blocks] : blocks) {
      for (double& of_block : of_blocks) {
        of_block += seconds;
        waits += strategy.repeats * seconds;
        sends += strategy.repeats * times * once.bytes;
      }
    }
  };
  share(strategy.forward, once.forward, 1);
  share(strategy.backward, once.backward + again * once.forward, once.times_backward + again);
  return waits;
}

namespace {

// Seconds for `bytes` of a component, exchanged `times` behind each of its blocks, or before it: as
// much as the block has of the component's weights. What is outside of blocks goes with the first
// one.
std::vector<double> block_seconds(const memory::StoredComponent& component, double bytes,
                                  double times, const RankMode& mode, const LinkProfile& links) {
  const auto all = static_cast<double>(
      std::accumulate(component.blocks.begin(), component.blocks.end(), component.outside));
  std::vector<double> seconds;
  for (size_t i = 0; i < component.blocks.size(); ++i) {
    const int64_t part = component.blocks[i] + (i == 0 ? component.outside : 0);
    seconds.push_back(times * exchange_seconds(links, group_of(mode, links),
                                               bytes * static_cast<double>(part) / all));
  }
  return seconds;
}

// Seconds at the end of a step in which nothing is computed: sums of `gradients` bytes between
// groups, and `values` bytes that come back in stages 1 and 2 before the next step begins.
double ending_seconds(const RankMode& mode, double gradients, double values,
                      const LinkProfile& links) {
  double seconds = 0.0;
  if (brings_values(mode) && values > 0)
    seconds += exchange_seconds(links, group_of(mode, links), values);
  if (mode.replicas() > 1)
    seconds += 2 * exchange_seconds(links, memory::one_of_each_machine(mode.replicas()),
                                    gradients / static_cast<double>(mode.group));
  return seconds;
}

}  // namespace

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
    if (!strategy.backward.contains(component.name)) continue;
    if (const auto of_it = step.gradients_of.find(component.name); of_it != step.gradients_of.end())
      strategy.sends[component.name] = block_seconds(
          stored, of_it->second, /*times=*/summing.zero_stage == 0 ? 2 : 1, summing, links);
    if (const auto of_it = step.awaited_of.find(component.name);
        brings_values(summing) && of_it != step.awaited_of.end())
      strategy.awaits[component.name] =
          block_seconds(stored, of_it->second, /*times=*/1, summing, links);
  }
  const double ending = ending_seconds(summing, step.whole.gradients, step.values_at_end, links);
  strategy.seconds += ending;
  done.exposed_seconds += ending;
  done.sent_bytes += sent_bytes(summing, step.whole, gathered, passes);
  if (step.is_of_factors && mode.zero_stage == 3)
    done.sent_bytes += sent_bytes(mode, {}, gathered, strategy.repeats);
  return done;
}

}  // namespace atelier::plan
