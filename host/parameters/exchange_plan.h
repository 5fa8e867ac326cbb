// What the ranks of a run exchange of what is trained, as data: ParameterPlacement carries it out,
// and plan/ prices it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "atelier/block.h"

#include "host/distributed/ranks.h"
#include "host/distributed/shards.h"
#include "host/model/model_loader.h"
#include "host/optim/optimizer.h"
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
  // In how many parts tensors are shared out.
  int parts() const { return zero_stage == 0 ? 1 : static_cast<int>(group); }
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
// Whether shards of what is whole on the device are moved in host memory, `wholes_on_host` being
// what that says: in float32 masters, or as stochastic rounding has it, in copies.
bool has_shards_on_host(const RankMode& summing, bool wholes_on_host);

// A tensor that ranks exchange.
struct ExchangedTensor {
  std::string name = {};
  // In whose steps alone it has a gradient, where a step may be of one of several denoisers; empty:
  // in all.
  std::string denoiser = {};
  const Block* block = nullptr;  // null: it is outside of blocks
};

// Blocks of a model in the order in which they run, and what is trained in and beside them.
struct TrainedBlocks {
  TrainedBlocks(model::LoadedModel& model, const Selection& selection);

  std::vector<const Block*> blocks;
  std::map<std::string, ExchangedTensor> tensors;  // by name
};

// Tensors in the buckets in which ranks exchange them.
struct ExchangedTensors {
  // Tensors without names, all of which are outside of blocks.
  explicit ExchangedTensors(distributed::FlatLayout of)
      : layout(std::move(of)), tensors(layout.tensors()) {}
  // `known`: in the order of `of`.
  ExchangedTensors(distributed::FlatLayout of, std::vector<ExchangedTensor> known)
      : layout(std::move(of)), tensors(std::move(known)) {}

  // Whether the tensor may have a gradient in a step of `denoiser`; empty: in one of all of them.
  bool is_of(size_t tensor, const std::string& denoiser) const {
    const std::string& own = tensors[tensor].denoiser;
    return denoiser.empty() || own.empty() || own == denoiser;
  }
  // Places of the buckets that such a step sends: with all that lies in them.
  std::vector<size_t> buckets_of(const std::string& denoiser) const;
  // Bytes of these, and of the tensors alone.
  int64_t bucket_bytes(const std::string& denoiser) const;
  int64_t tensor_bytes(const std::string& denoiser) const;

  distributed::FlatLayout layout;  // buckets as they are sent, and the shards of all ranks in them
  std::vector<ExchangedTensor> tensors;
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
  // By bucket: the one that reads it first, which in a backward pass is the last to give it a
  // gradient.
  std::vector<const Block*> first;
};
ArrivalOrder arrival_order(const std::vector<const Block*>& blocks,
                           const ExchangedTensors& tensors);

// Buckets of gradients, or of moved values that come back, at one time, at most.
inline constexpr size_t kBucketsUnderWay = 4;

struct ExchangePlan {
  // `wholes`: whole on each rank, in the optimizer's order, in buckets of mode.parts(). `divided`:
  // of blocks that are divided, which exchange their gradients beside these, one block behind the
  // other. `blocks`: all of them in the order in which they run.
  ExchangePlan(const RankMode& summing, bool rest_on_host, ExchangedTensors wholes,
               ExchangedTensors divided = ExchangedTensors(distributed::FlatLayout({})),
               const std::vector<const Block*>& blocks = {})
      : mode(summing),
        wholes_on_host(rest_on_host),
        wholes(std::move(wholes)),
        divided(std::move(divided)),
        arrival(arrival_order(blocks, this->wholes)) {}

  // Parts of sums are all that is kept of gradients: they are sent in each backward pass, and not
  // once in a step. What gathers on the host is whole there anyway.
  bool sends_each_pass() const { return mode.zero_stage > 1 && !wholes_on_host; }
  // Moved values may come while the blocks of the next step run. What all blocks come from has to
  // be whole, and what is saved behind a step that ranks compute together and leave.
  bool brings_ahead() const { return !wholes_on_host && mode.sequence == 1 && mode.zero_stage < 3; }

  RankMode mode;        // see summing_mode()
  bool wholes_on_host;  // see has_wholes_on_host()
  ExchangedTensors wholes;
  ExchangedTensors divided;
  ArrivalOrder arrival;  // of wholes
};

// What the optimizer of rank `part` of a group moves of `wholes`, all that is trained: shards as
// the plan cuts them, in shape and dtype alone. `masters`: see optim::Options.
std::vector<optim::Group> moved_by(const ExchangePlan& plan, std::vector<optim::Group> wholes,
                                   int part, optim::MasterWeights masters);
// Lets the optimizer move `leaf`, which has the numbers of `extent`, in place of a whole parameter.
void cut(optim::Parameter& whole, const distributed::FlatLayout::Extent& extent, at::Tensor leaf);

}  // namespace atelier::parameters
