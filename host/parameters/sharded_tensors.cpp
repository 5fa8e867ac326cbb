#include "host/parameters/sharded_tensors.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "host/optim/blockwise.h"
#include "host/parameters/host_parameters.h"

namespace atelier::parameters {

using at::Tensor;
using distributed::FlatLayout;
using distributed::Group;

static_assert(distributed::kBlockNumbers % optim::kQuantizedBlock == 0 &&
              distributed::kLeastInBlocks <= optim::kLeastQuantized &&
              distributed::kSmallBlockNumbers % 8 == 0);

ShardedTensors::ShardedTensors(distributed::ShardGroups groups, const ExchangePlan& plan,
                               const std::vector<optim::Parameter*>& tensors, ShardMemory memory)
    : plan_(plan),
      groups_(std::move(groups)),
      memory_(memory),
      values_(plan.arrival,
              [this](size_t bucket) { return bring(plan_.wholes.layout.buckets()[bucket]); }) {
  for (optim::Parameter* tensor : tensors) {
    Shared& shared = shared_.emplace_back();
    shared.whole = *tensor;
    shared.extent = plan_.wholes.layout.extent(shared_.size() - 1, groups_.shards->rank());
    shared.shard = make_shard(shared.own_part());
    cut(*tensor, shared.extent, shared.shard);
  }
}

Tensor ShardedTensors::make_shard(const Tensor& own_part) const {
  if (memory_.transfer == nullptr) return own_part;
  const memory::HostScope host;
  if (memory_.has_masters)
    return own_part.to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  return copy_on_host(*memory_.transfer, own_part);
}

void ShardedTensors::take_gradients(const GradientSums& sums) {
  is_moved_.emplace(plan_.wholes.layout.buckets().size());
  for (size_t place = 0; place < shared_.size(); ++place) {
    const Tensor gradient = sums.shard(place);
    shared_[place].shard.mutable_grad() = gradient;
    if (gradient.defined()) (*is_moved_)[plan_.wholes.layout.bucket_of(place)] = true;
  }
}

// Memory in which the values of `part` come together where shards are: the part itself, or pinned.
Tensor ShardedTensors::staging(const Tensor& part) {
  if (memory_.transfer == nullptr || part.is_cpu()) return part;
  const auto bytes = static_cast<int64_t>(part.nbytes());
  if (!staging_.defined() || staging_.numel() < bytes)
    staging_ = memory_.transfer->host_memory(bytes);
  return staging_.narrow(0, 0, bytes).view(part.scalar_type()).zero_();
}

// Gathers a bucket of moved shards. What is returned waits, and writes it into the wholes.
std::function<void()> ShardedTensors::bring(const FlatLayout::Bucket& bucket) {
  const at::NoGradGuard no_grad;
  Group& shards = *groups_.shards;
  const at::Device device = bucket.options.device();
  const auto options = bucket.options.device(shards.sends(device) ? device : at::kCPU);
  const Tensor whole = at::empty({bucket.count}, options);
  const Tensor part = at::zeros({bucket.count / shards.size()}, options);
  const Tensor filled = staging(part);
  for (const FlatLayout::Position& place : bucket.positions) {
    const Shared& shared = shared_[place.tensor];
    filled.narrow(0, shared.extent.at, shared.extent.count).copy_(shared.shard);
  }
  if (!filled.is_same(part)) part.copy_(filled);
  return [this, &bucket, whole, part, sent = shards.all_gather(whole, part)]() mutable {
    const at::NoGradGuard no_grad;
    sent.wait();
    // Where processes leave, nothing has come, and shards may lie in the leaves.
    if (groups_.shards->is_called_off()) return;
    for (const FlatLayout::Position& place : bucket.positions) {
      const Tensor leaf = shared_[place.tensor].whole.leaf.detach();
      leaf.view(-1).copy_(whole.narrow(0, place.begin, leaf.numel()));
    }
  };
}

void ShardedTensors::send_values() {
  const std::vector<bool> all(plan_.wholes.layout.buckets().size(), true);
  values_.open(std::exchange(is_moved_, std::nullopt).value_or(all));
}

void ShardedTensors::adopt() {
  const at::NoGradGuard no_grad;
  if (memory_.transfer == nullptr) return;
  for (Shared& shared : shared_) shared.shard.detach().copy_(shared.own_part());
}

}  // namespace atelier::parameters
