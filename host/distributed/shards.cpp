#include "host/distributed/shards.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ATen.h>

#include "memory/slab_peers.h"
#include "memory/transfer_device.h"

namespace atelier::distributed {

namespace {

constexpr int64_t kBucketBytes = int64_t{25} << 20;

int64_t round_up(int64_t number, int64_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<at::Tensor>& tensors, int parts)
    : parts_(parts),
      bucket_of_(tensors.size()),
      numbers_(tensors.size()),
      extents_(tensors.size()) {
  for (size_t tensor = tensors.size(); tensor-- > 0;) add(tensor, tensors[tensor]);
  for (Bucket& bucket : buckets_) {
    if (parts > 1) bucket.count = round_up(bucket.count, parts * (kPartBytes / bucket.itemsize()));
    for (const Position& position : bucket.positions) cut(position);
  }
}

FlatLayout::FlatLayout(const std::vector<Cut>& tensors)
    : parts_(tensors.empty() ? 1 : static_cast<int>(tensors.front().extents.size())) {
  std::map<std::pair<const Block*, at::ScalarType>, size_t> known;
  std::vector<std::vector<int64_t>> ends;  // by bucket, of each part
  for (const Cut& tensor : tensors) {
    const auto [found, is_new] =
        known.try_emplace({tensor.block, tensor.options.dtype().toScalarType()}, buckets_.size());
    const size_t bucket = found->second;
    if (is_new) {
      buckets_.push_back({.positions = {}, .options = tensor.options, .block = tensor.block});
      ends.emplace_back(tensor.extents.size());
    }
    buckets_[bucket].positions.push_back({bucket_of_.size(), 0});
    bucket_of_.push_back(bucket);
    int64_t& numbers = numbers_.emplace_back(0);
    std::vector<Extent>& extents = extents_.emplace_back(tensor.extents);
    for (size_t part = 0; part < extents.size(); ++part) {
      extents[part].at = ends[bucket][part];
      numbers += extents[part].count;
      ends[bucket][part] += round_up(extents[part].count, kSmallBlockNumbers);
    }
  }
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    buckets_[bucket].count = parts_ * std::ranges::max(ends[bucket]);
}

void FlatLayout::add(size_t tensor, const at::Tensor& value) {
  const auto bytes = [&](int64_t count) { return count * static_cast<int64_t>(value.itemsize()); };
  const bool fits = !buckets_.empty() && buckets_.back().options.dtype() == value.dtype() &&
                    buckets_.back().options.device() == value.device() &&
                    bytes(buckets_.back().count + value.numel()) <= kBucketBytes;
  if (!fits) buckets_.push_back({.positions = {}, .options = value.options().requires_grad(false)});
  Bucket& bucket = buckets_.back();
  if (parts_ > 1)
    bucket.count =
        round_up(bucket.count, value.numel() < kLeastInBlocks ? kSmallBlockNumbers : kBlockNumbers);
  bucket.positions.push_back({tensor, bucket.count});
  bucket_of_[tensor] = buckets_.size() - 1;
  numbers_[tensor] = value.numel();
  bucket.count += value.numel();
}

// Finds what each part has of a tensor that lies in one piece.
void FlatLayout::cut(const Position& position) {
  const int64_t length = buckets_[bucket_of_[position.tensor]].count / parts_;
  const int64_t first = position.begin, end = first + numbers_[position.tensor];
  for (int64_t part = 0; part < parts_; ++part) {
    const int64_t from = std::max(first, part * length), to = std::min(end, (part + 1) * length);
    Extent& extent = extents_[position.tensor].emplace_back();
    if (from < to) extent = {.begin = from - first, .at = from - part * length, .count = to - from};
  }
}

int64_t FlatLayout::most_bytes(size_t count, size_t passes) const {
  int64_t most = 0, bytes = 0;
  std::vector<int64_t> all;
  for (size_t i = 0; i < buckets_.size() * std::min(passes, count); ++i) {
    all.push_back(buckets_[i % buckets_.size()].bytes());
    bytes += all.back();
    if (i >= count) bytes -= all[i - count];
    most = std::max(most, bytes);
  }
  return most;
}

ShardGroups ShardGroups::make(Group& world, int size) {
  std::vector<std::vector<int>> replicas(static_cast<size_t>(size));
  for (int rank = 0; rank < world.size(); ++rank)
    replicas[static_cast<size_t>(rank % size)].push_back(rank);
  return {.shards = world.neighbours(size, "shards"),
          .replicas = world.size() > size ? world.among(replicas, "replicas") : nullptr};
}

// Parts that are there several times are added once: those of the first group.
void ShardGroups::add_up(Group& world, at::Tensor& value) const {
  if (replicas && !replicas->is_first()) value.zero_();
  exchange_through_host(world, value,
                        [&](const at::Tensor& sent) { world.all_reduce(sent).wait(); });
}

void let_go(at::Tensor& value) {
  if (value.is_cpu()) value.storage().set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  value.reset();
}

void add_to_sum(at::Tensor& sum, at::Tensor& part, at::Device device, bool on_host) {
  std::optional<memory::HostScope> host;
  if (on_host) host.emplace();
  const at::Device place = on_host ? at::Device(at::kCPU) : device;
  if (sum.defined()) {
    sum.add_(part.to(place));
  } else {
    sum = part.to(place, part.scalar_type(), /*non_blocking=*/false, /*copy=*/on_host);
  }
  if (!sum.is_alias_of(part)) let_go(part);
}

}  // namespace atelier::distributed
