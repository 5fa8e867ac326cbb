// Trained tensors that are whole on each rank, and of which each moves shards (ZeRO).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/distributed/shards.h"
#include "host/optim/optimizer.h"
#include "host/parameters/arriving_values.h"
#include "host/parameters/exchange_plan.h"
#include "host/parameters/gradient_sums.h"
#include "memory/transfer_device.h"

namespace atelier::parameters {

// Where shards rest.
struct ShardMemory {
  memory::TransferDevice* transfer = nullptr;  // to host memory; null: they are parts of the wholes
  bool has_masters = false;  // there they are in float32, and rounded when they are sent
};

// Carries out an exchange plan that shares something out. Each tensor lies whole on each rank, and
// in a shard on the rank that moves it:
//
//   rank 0   whole, its gradient    -- reduce-scatter -->   shard 0 with its sum, optimizer state 0
//   rank 1   whole, its gradient    -- reduce-scatter -->   shard 1 with its sum, optimizer state 1
//            whole                  <--  all-gather  ---    moved shards
//
// With groups that each hold everything, sums go between the groups as well, and each group gathers
// from its own. ParameterPlacement has the order of the calls. Not thread-safe.
class ShardedTensors {
 public:
  // `tensors`: in the order of the plan. The optimizer moves this rank's shards of them from now
  // on. `plan` outlives this.
  ShardedTensors(distributed::ShardGroups groups, const ExchangePlan& plan,
                 const std::vector<optim::Parameter*>& tensors, ShardMemory memory);
  ShardedTensors(const ShardedTensors&) = delete;
  ShardedTensors& operator=(const ShardedTensors&) = delete;

  // Gives each shard its sum.
  void take_gradients(const GradientSums& sums);

  // Moved shards begin to come back into the wholes, in buckets that each block waits for.
  void send_values();
  ArrivingValues& values() { return values_; }
  // Makes shards of wholes that were loaded.
  void adopt();

 private:
  struct Shared {
    optim::Parameter whole;
    at::Tensor shard;  // flat
    distributed::FlatLayout::Extent extent;

    at::Tensor own_part() const {
      return whole.leaf.detach().view(-1).narrow(0, extent.begin, extent.count);
    }
  };
  at::Tensor make_shard(const at::Tensor& own_part) const;
  at::Tensor staging(const at::Tensor& part);
  std::function<void()> bring(const distributed::FlatLayout::Bucket& bucket);

  const ExchangePlan& plan_;
  const distributed::ShardGroups groups_;
  const ShardMemory memory_;
  std::vector<Shared> shared_;  // in the optimizer's order
  at::Tensor staging_;          // on the host, of shards of a bucket on their way to the device
  // By bucket, whether the step has a gradient for it; nullopt: no step is under way.
  std::optional<std::vector<bool>> is_moved_;
  ArrivingValues values_;
};

}  // namespace atelier::parameters
