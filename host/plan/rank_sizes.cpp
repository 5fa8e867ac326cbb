#include "host/plan/rank_sizes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "host/model/components.h"
#include "memory/divided_slab.h"

namespace atelier::plan {

using memory::exchange_seconds;
using memory::LinkProfile;
using parameters::ExchangedTensors;
using parameters::ExchangePlan;

GradientBytes gradient_bytes(const ExchangePlan& exchange, const std::string& denoiser) {
  const auto wholes = static_cast<double>(exchange.wholes.tensor_bytes(denoiser));
  if (exchange.mode.zero_stage == 0) return {.wholes = wholes};
  const double sent = static_cast<double>(exchange.wholes.bucket_bytes(denoiser) +
                                          exchange.divided.bucket_bytes(denoiser));
  return {.wholes = exchange.sends_each_pass() ? 0.0 : wholes,
          .sums = sent / static_cast<double>(exchange.mode.group)};
}

namespace {

// All but its own, where each of so many ranks has a part.
double others(int64_t ranks) {
  return static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

}  // namespace

double sent_bytes(const ExchangePlan& exchange, const std::string& denoiser, double passes,
                  double runs) {
  const RankMode& mode = exchange.mode;
  const auto wholes = static_cast<double>(exchange.wholes.bucket_bytes(denoiser));
  const auto divided = static_cast<double>(exchange.divided.bucket_bytes(denoiser));
  if (mode.zero_stage == 0) return 2 * others(mode.ranks) * wholes;
  const double gradients = (exchange.sends_each_pass() ? passes : 1.0) * wholes + runs * divided;
  const double between = 2 * others(mode.replicas()) * gradient_bytes(exchange, denoiser).sums;
  return others(mode.group) * (gradients + wholes) + between;
}

double gathered_bytes(const RankMode& mode, double bytes, double runs) {
  return 2 * runs * others(mode.group) * bytes;
}

namespace {

// Bytes of the buckets of the block that has most.
double largest_block(const ExchangedTensors& divided) {
  std::map<const Block*, int64_t> bytes;
  int64_t most = 0;
  for (const auto& bucket : divided.layout.buckets())
    most = std::max(most, bytes[bucket.block] += bucket.bytes());
  return static_cast<double>(most);
}

}  // namespace

UnderWay under_way_bytes(const ExchangePlan& exchange, int64_t passes, bool through_host) {
  const RankMode& mode = exchange.mode;
  if (mode.ranks == 1) return {};
  const distributed::FlatLayout& layout = exchange.wholes.layout;
  const int64_t sends = exchange.sends_each_pass() ? passes : 1;
  const auto most_bytes = [&](size_t buckets, int64_t times) {
    return static_cast<double>(layout.most_bytes(buckets, static_cast<size_t>(times)));
  };
  const double bucket = most_bytes(1, 1), at_once = most_bytes(parameters::kBucketsUnderWay, sends);
  if (mode.zero_stage == 0) return {.gradients = at_once};
  // Beside a bucket this rank's part of its sum and, through host memory, what each rank has of it.
  const double beside = 1.0 / static_cast<double>(mode.group) + (through_host ? 1.0 : 0.0);
  const double values = (1.0 + beside) * most_bytes(parameters::kBucketsUnderWay, 1);
  // In stage 1 gradients count whole until they are sent. Otherwise parts of sums alone do.
  if (mode.zero_stage == 1) return {std::max(bucket, beside * at_once), values};
  const double in_step = static_cast<double>(sends) * most_bytes(layout.buckets().size(), 1);
  const double collected = std::min(bucket, in_step - at_once);
  return {collected + (1.0 + beside) * at_once + (2.0 + beside) * largest_block(exchange.divided),
          values};
}

memory::RankGroup group_of(const RankMode& mode, const LinkProfile& links) {
  return memory::nearest_ranks(links, mode.group);
}

void round_blocks(memory::PlannedComponent& component) {
  if (component.shards == 1) return;
  for (memory::StoredComponent& stored : component.storages) {
    for (int64_t& bytes : stored.blocks)
      bytes = component.shards * memory::part_bytes(bytes, component.shards);
  }
}

void shard_blocks(memory::PlannedComponent& component, const RankMode& mode,
                  const LinkProfile& links) {
  component.shards = static_cast<int>(mode.group);
  round_blocks(component);
  for (memory::StoredComponent& stored : component.storages) {
    stored.kept.clear();
    for (const int64_t bytes : stored.blocks)
      stored.gathers.push_back(
          exchange_seconds(links, group_of(mode, links), static_cast<double>(bytes)));
  }
  component.may_stream = true;
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

// What ranks exchange of one plan, and how long it takes, on the way of a step through its blocks.
class BucketTimes {
 public:
  BucketTimes(const SharedStep& step, const std::vector<memory::PlannedComponent>& components,
              const LinkProfile& links)
      : step_(step), exchange_(*step.exchange), components_(components), links_(links) {}

  // Gradients leave behind the block that is the last one to give their bucket any. Those of
  // wholes leave `times` in each of the passes in which others do.
  void send(std::map<std::string, std::vector<double>>& sends, double times) const {
    const double ways = exchange_.mode.zero_stage == 0 ? 2 : 1;  // an all-reduce has two
    const auto& buckets = exchange_.wholes.layout.buckets();
    for (size_t i = 0; i < buckets.size(); ++i)
      add(sends, place(i), ways * times * once(buckets[i]));
    for (const auto& bucket : exchange_.divided.layout.buckets())
      add(sends, step_.places.at(bucket.block), once(bucket));
  }
  // Values come before the first block that reads any of their bucket.
  void await(std::map<std::string, std::vector<double>>& awaits) const {
    const auto& buckets = exchange_.wholes.layout.buckets();
    for (size_t i = 0; i < buckets.size(); ++i) add(awaits, place(i), once(buckets[i]));
  }
  // At the end of a step, in which nothing is computed: sums between groups, and values where they
  // do not come ahead.
  double ending_seconds() const {
    const RankMode& mode = exchange_.mode;
    double seconds = 0.0;
    for (const ExchangedTensors* exchanged : {&exchange_.wholes, &exchange_.divided}) {
      const bool brings =
          mode.zero_stage > 0 && exchanged == &exchange_.wholes && !exchange_.brings_ahead();
      for (const size_t i : exchanged->buckets_of(step_.denoiser)) {
        const auto& bucket = exchanged->layout.buckets()[i];
        if (brings) seconds += once(bucket);
        if (mode.replicas() > 1)
          seconds += 2 * exchange_seconds(
                             links_, memory::one_of_each_machine(mode.replicas()),
                             static_cast<double>(bucket.bytes()) / static_cast<double>(mode.group));
      }
    }
    return seconds;
  }

 private:
  double once(const distributed::FlatLayout::Bucket& bucket) const {
    return exchange_seconds(links_, group_of(exchange_.mode, links_),
                            static_cast<double>(bucket.bytes()));
  }
  // What is outside of blocks goes with the first one of its component.
  BlockPlace place(size_t bucket) const {
    if (const Block* first = exchange_.arrival.first[bucket]; first != nullptr)
      return step_.places.at(first);
    const size_t tensor = exchange_.wholes.layout.buckets()[bucket].positions.back().tensor;
    return {model::component_of(exchange_.wholes.tensors[tensor].name)};
  }
  // Nothing where the component has no blocks in the strategy.
  void add(std::map<std::string, std::vector<double>>& seconds, const BlockPlace& place,
           double more) const {
    const auto found =
        std::ranges::find(components_, place.component, &memory::PlannedComponent::name);
    if (found == components_.end() || found->storages.front().blocks.empty()) return;
    std::vector<double>& of_blocks = seconds[place.component];
    of_blocks.resize(found->storages.front().blocks.size());
    of_blocks[place.block] += more;
  }

  const SharedStep& step_;
  const ExchangePlan& exchange_;
  const std::vector<memory::PlannedComponent>& components_;
  const LinkProfile& links_;
};

}  // namespace

StepExchange share_step(const SharedStep& step,
                        const std::vector<memory::PlannedComponent>& components,
                        const RankMode& mode, const LinkProfile& links,
                        memory::Strategy& strategy) {
  StepExchange done;
  if (mode.sequence > 1)
    done.exposed_seconds = share_rows(strategy, mode, step.attention, links, done.sent_bytes);
  const ExchangePlan& exchange = *step.exchange;
  // Divided blocks come and send in each run, of which distillation makes several in a batch.
  const double runs = strategy.repeats;
  const double passes = exchange.sends_each_pass() ? step.batches : 1.0;
  strategy.sending_repeats = exchange.divided.tensors.empty() ? passes : runs;
  const BucketTimes times(step, components, links);
  times.send(strategy.sends, passes / strategy.sending_repeats);
  if (exchange.mode.zero_stage > 0 && exchange.brings_ahead()) times.await(strategy.awaits);
  const double ending = times.ending_seconds();
  strategy.seconds += ending;
  done.exposed_seconds += ending;
  double gathered = 0.0;
  for (const memory::PlannedComponent& component : components) {
    const memory::StoredComponent& stored = component.storages.front();
    if (!stored.gathers.empty())
      gathered += static_cast<double>(
          std::accumulate(stored.blocks.begin(), stored.blocks.end(), int64_t{0}));
  }
  done.sent_bytes += sent_bytes(exchange, step.denoiser, step.batches, runs) +
                     gathered_bytes(mode, gathered, runs);
  return done;
}

}  // namespace atelier::plan
