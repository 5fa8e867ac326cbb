// What the ranks of a run exchange of what is trained, as data: ParameterPlacement carries it out,
// and plan/ prices it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "atelier/block.h"

#include "host/distributed/ranks.h"
#include "host/distributed/shards.h"
#include "host/model/model_loader.h"
#include "host/order/training.h"
#include "host/parameters/selection.h"
#include "host/report/problems.h"
#include "memory/link_profile.h"

namespace atelier::parameters {

// How many ranks share one whole of what is trained, as --zero_stage and --zero_group say; 1:
// nothing of it is shared out.
int shard_ranks(const order::Training& config, const distributed::Ranks& ranks);
// How many have the blocks of the denoisers among them (stage 3); 1: each has them whole.
int block_ranks(const order::Training& config, const distributed::Ranks& ranks);

// Whether --zero_group makes groups of one size of these ranks.
bool makes_whole_groups(const order::Training& config, const distributed::Ranks& ranks);

// What cannot be shared out among these ranks becomes a problem.
void check_shards(const order::Training& config, const distributed::Ranks& ranks,
                  report::Problems& problems);

// How ranks share a training: --zero_stage, --zero_group, --optimize_on_cpu, --sequence_parallel.
struct RankMode {
  int64_t ranks = 1;
  int zero_stage = 0;
  bool on_host = false;  // optimizer state and gradients rest in host memory
  int64_t group = 1;     // ranks that share one copy of what the stage shards
  int64_t sequence = 1;  // ranks that share the rows of one sample
  int64_t replicas() const { return ranks / group; }
  // Batches that are made at one time.
  int64_t batches() const { return std::max<int64_t>(1, ranks / sequence); }
  int64_t ranks_of_machine(const memory::LinkProfile& links) const {
    return std::min(ranks, links.ranks_per_machine);
  }
};
// How what is trained is shared: factors are whole where stage 3 shares the base.
RankMode summing_mode(const RankMode& mode, bool is_of_factors);
// Whether tensors that are trained rest whole in host memory, and their gradients go there as they
// are made: where the weights' blocks do, or the user wants it and nothing is shared out. Wholes of
// what is shared out stay on the device, and shards go to the host.
bool has_wholes_on_host(const RankMode& summing, bool is_wanted, bool rest_on_host);

// Blocks of a model in the order in which they run, and those that trained tensors belong to.
struct TrainedBlocks {
  TrainedBlocks(model::LoadedModel& model, const Selection& selection);
  // Null: the tensor of that name is outside of blocks.
  const Block* find(const std::string& name) const;

  std::vector<const Block*> blocks;
  std::map<std::string, const Block*> of;  // by name of a tensor
};

// Buckets in the order in which moved values come back, which all ranks have, whatever each of them
// runs: those that are needed outside of blocks first, then by blocks.
struct ArrivalOrder {
  // needs[i]: the blocks that read values of bucket i; null stands for what is outside of blocks.
  // `blocks`: all of them in the order in which they run.
  ArrivalOrder(const std::vector<const Block*>& blocks,
               const std::vector<std::vector<const Block*>>& needs);

  std::vector<size_t> buckets;
  std::map<const Block*, size_t> ends;  // in `buckets`, behind the last one that a block needs
};
// `names`: of the tensors that `layout` has, in its order.
ArrivalOrder arrival_order(const TrainedBlocks& blocks, const distributed::FlatLayout& layout,
                           const std::vector<std::string>& names);

// Buckets of gradients, or of moved values that come back, at one time, at most.
inline constexpr size_t kBucketsUnderWay = 4;

struct ExchangePlan {
  // `tensors`: whole on each rank, in the optimizer's order. `divided`: of blocks that are divided,
  // which exchange their gradients beside these, one block behind the other.
  ExchangePlan(const RankMode& summing, bool rest_on_host, const std::vector<at::Tensor>& tensors,
               const std::vector<distributed::FlatLayout::Cut>& divided = {})
      : mode(summing),
        wholes_on_host(rest_on_host),
        layout(tensors, mode.zero_stage == 0 ? 1 : static_cast<int>(mode.group)),
        divided(divided) {}

  // Parts of sums are all that is kept of gradients: they are sent in each backward pass, and not
  // once in a step. What gathers on the host is whole there anyway.
  bool sends_each_pass() const { return mode.zero_stage > 1 && !wholes_on_host; }
  // Moved values may come while the blocks of the next step run. What all blocks come from has to
  // be whole, and what is saved behind a step that ranks compute together and leave.
  bool brings_ahead() const { return !wholes_on_host && mode.sequence == 1 && mode.zero_stage < 3; }

  RankMode mode;                   // see summing_mode()
  bool wholes_on_host;             // see has_wholes_on_host()
  distributed::FlatLayout layout;  // buckets as they are sent, and the shards of all ranks in them
  distributed::FlatLayout divided;
};

}  // namespace atelier::parameters
