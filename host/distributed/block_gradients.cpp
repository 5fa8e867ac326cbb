#include "host/distributed/block_gradients.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace atelier::distributed {

using at::Tensor;

namespace {

constexpr int64_t kPieceNumbers = 32;  // pieces of a part begin at multiples

int64_t bytes_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

}  // namespace

BlockGradients::BlockGradients(Group& world, ShardGroups groups, bool on_host)
    : world_(world), groups_(std::move(groups)), on_host_(on_host) {}

int64_t BlockGradients::Bucket::length() const {
  return std::ranges::max(counts);
}

size_t BlockGradients::add(const Block& block, std::vector<FlatLayout::Extent> extents,
                           const at::TensorOptions& options) {
  std::vector<size_t>& known = buckets_of_[&block];
  auto found = std::ranges::find_if(
      known, [&](size_t bucket) { return buckets_[bucket].options.dtype() == options.dtype(); });
  if (found == known.end()) {
    known.push_back(buckets_.size());
    found = known.end() - 1;
    buckets_.push_back({.options = options, .counts = std::vector<int64_t>(extents.size())});
  }
  std::vector<int64_t>& counts = buckets_[*found].counts;
  for (size_t rank = 0; rank < extents.size(); ++rank) {
    extents[rank].at = counts[rank];
    counts[rank] += (extents[rank].count + kPieceNumbers - 1) / kPieceNumbers * kPieceNumbers;
  }
  shared_.push_back({.bucket = *found, .extents = std::move(extents)});
  return shared_.size() - 1;
}

void BlockGradients::take(size_t place, const Tensor& gradient) {
  const at::NoGradGuard no_grad;
  Shared& shared = shared_[place];
  Bucket& bucket = buckets_[shared.bucket];
  if (!bucket.values.defined())
    bucket.values = at::zeros({std::ssize(bucket.counts), bucket.length()}, bucket.options);
  shared.has = true;
  const Tensor numbers = gradient.detach().reshape({-1});
  for (size_t rank = 0; rank < shared.extents.size(); ++rank) {
    const auto& [begin, at, count] = shared.extents[rank];
    if (count == 0) continue;
    bucket.values[static_cast<int64_t>(rank)]
        .narrow(0, at, count)
        .copy_(numbers.narrow(0, begin, count));
  }
}

void BlockGradients::send(const Block& block) {
  const at::NoGradGuard no_grad;
  const auto found = buckets_of_.find(&block);
  if (found == buckets_of_.end()) return;
  settle();
  for (const size_t index : found->second) {
    Bucket& bucket = buckets_[index];
    Sending sending = {.bucket = index, .values = std::exchange(bucket.values, {})};
    if (!sending.values.defined())
      sending.values = at::zeros({std::ssize(bucket.counts), bucket.length()}, bucket.options);
    if (!groups_.shards->sends(sending.values.device())) sending.values = sending.values.cpu();
    sending.part = at::empty({bucket.length()}, sending.values.options());
    sending.sent = groups_.shards->reduce_scatter(sending.part, sending.values);
    under_way_.push_back(std::move(sending));
  }
}

void BlockGradients::settle() {
  const at::NoGradGuard no_grad;
  for (Sending& sending : std::exchange(under_way_, {})) {
    std::exchange(sending.sent, {}).wait();
    let_go(sending.values);
    Bucket& bucket = buckets_[sending.bucket];
    add_to_sum(bucket.sum, sending.part, bucket.options.device(), on_host_);
  }
}

void BlockGradients::finish() {
  const at::NoGradGuard no_grad;
  settle();
  count();
  if (groups_.replicas) add_groups();
  groups_.shards->compare();
}

// Which gradients some rank has.
void BlockGradients::count() {
  const Tensor counts = at::empty({std::ssize(shared_)}, at::kDouble);
  auto* const values = counts.mutable_data_ptr<double>();
  for (size_t place = 0; place < shared_.size(); ++place)
    values[place] = shared_[place].has ? 1 : 0;
  world_.all_reduce(counts).wait();
  for (size_t place = 0; place < shared_.size(); ++place) shared_[place].has = values[place] > 0;
}

void BlockGradients::add_groups() {
  for (size_t index = 0; index < buckets_.size(); ++index) {
    if (std::ranges::none_of(
            shared_, [&](const Shared& shared) { return shared.bucket == index && shared.has; }))
      continue;
    Bucket& bucket = buckets_[index];
    if (!bucket.sum.defined()) {  // it came in another group alone
      Tensor nothing = at::zeros({bucket.length()}, bucket.options);
      add_to_sum(bucket.sum, nothing, bucket.options.device(), on_host_);
    }
    exchange_through_host(*groups_.replicas, bucket.sum,
                          [&](const Tensor& sent) { groups_.replicas->all_reduce(sent).wait(); });
  }
  groups_.replicas->compare();
}

Tensor BlockGradients::piece(size_t place) const {
  const Shared& shared = shared_[place];
  if (!shared.has) return {};
  const FlatLayout::Extent& extent = shared.extents[static_cast<size_t>(groups_.shards->rank())];
  return buckets_[shared.bucket].sum.narrow(0, extent.at, extent.count);
}

int64_t BlockGradients::sum_bytes() const {
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets_) bytes += bytes_of(bucket.sum);
  return bytes;
}

int64_t BlockGradients::bytes_under_way() const {
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets_) bytes += bytes_of(bucket.values);
  for (const Sending& sending : under_way_)
    bytes += bytes_of(sending.values) + bytes_of(sending.part);
  return bytes;
}

void BlockGradients::clear() {
  for (Bucket& bucket : buckets_) bucket.values = bucket.sum = Tensor();
  for (Shared& shared : shared_) shared.has = false;
}

}  // namespace atelier::distributed
