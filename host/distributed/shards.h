// How tensors are shared out among ranks: one behind another in flat buckets, of each of which
// every rank has an equal part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/distributed/group.h"

namespace atelier {
class Block;
}

namespace atelier::distributed {

// Parts are made up of so many bytes. A tensor begins at a multiple of so many numbers, a small one
// at a multiple of fewer: what is computed block by block, or in vectors, stays so in its shards.
inline constexpr int64_t kPartBytes = 1024;
inline constexpr int64_t kBlockNumbers = 256, kSmallBlockNumbers = 32;
inline constexpr int64_t kLeastInBlocks = 4096;  // numbers of a tensor that is not small

// Immutable.
class FlatLayout {
 public:
  struct Position {
    size_t tensor;
    int64_t begin;  // in the bucket, in numbers
  };
  // Tensors of one dtype and device. Backward passes come to the last ones first, and so do
  // buckets.
  struct Bucket {
    std::vector<Position> positions;
    int64_t count = 0;  // of numbers, with those between tensors and behind the last one
    at::TensorOptions options;
    const Block* block = nullptr;  // of tensors that were cut already

    int64_t itemsize() const { return static_cast<int64_t>(options.dtype().itemsize()); }
    int64_t bytes() const { return count * itemsize(); }
  };
  // Numbers of a tensor that lie in one part.
  struct Extent {
    int64_t begin = 0;  // the first one, counted flat
    int64_t at = 0;     // where it lies in the part
    int64_t count = 0;  // 0: none do
  };

  // A tensor of a block that is cut already: extents[p] is what part p has of it, whose `at` is not
  // read. Tensors of one block and dtype have a bucket.
  struct Cut {
    const Block* block;
    at::TensorOptions options;
    std::vector<Extent> extents;
  };

  // Buckets have 25 MiB at most where no tensor is larger. Of one part nothing is aligned.
  FlatLayout(const std::vector<at::Tensor>& tensors, int parts);
  explicit FlatLayout(const std::vector<Cut>& tensors);

  int parts() const { return parts_; }
  size_t tensors() const { return bucket_of_.size(); }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  size_t bucket_of(size_t tensor) const { return bucket_of_[tensor]; }
  int64_t bytes_of(size_t tensor) const {
    return numbers_[tensor] * buckets_[bucket_of_[tensor]].itemsize();
  }
  Extent extent(size_t tensor, int part) const {
    return extents_[tensor][static_cast<size_t>(part)];
  }
  // Bytes of the largest `count` buckets that follow each other, where all come `passes` times.
  int64_t most_bytes(size_t count, size_t passes = 1) const;

 private:
  void add(size_t tensor, const at::Tensor& value);
  void cut(const Position& position);

  int parts_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;             // by tensor
  std::vector<int64_t> numbers_;              // by tensor
  std::vector<std::vector<Extent>> extents_;  // by tensor and part
};

// The ranks of a run in groups that each have all parts.
struct ShardGroups {
  std::shared_ptr<Group> shards;    // the ranks of this one's group: each has another part
  std::shared_ptr<Group> replicas;  // those that have the same part; null: there is one group

  // Groups of `size` ranks that follow each other. All ranks of `world` call this; its size is a
  // multiple.
  static ShardGroups make(Group& world, int size);

  // The sum over the parts of `value`, in place. Every rank of `world` gets the same bits.
  void add_up(Group& world, at::Tensor& value) const;
};

// Adds `part`, which came from other ranks, to a sum of such on `device`, or `on_host`. An
// undefined sum becomes the first, and takes its memory where it is on the device; otherwise the
// part is let go.
void add_to_sum(at::Tensor& sum, at::Tensor& part, at::Device device, bool on_host);

// Gives the memory of `value` back, which has been exchanged and is read by nobody: a thread of
// Gloo holds on to the tensor for a moment longer. `value` is undefined then.
void let_go(at::Tensor& value);

// Calls `exchange` with the value, or with its copy in host memory where the group cannot send it
// from where it lies; and copies that back.
template <typename F>
void exchange_through_host(const Group& group, const at::Tensor& value, F&& exchange) {
  if (group.sends(value.device())) return exchange(value);
  const at::Tensor host = value.cpu();
  exchange(host);
  value.copy_(host);
}

}  // namespace atelier::distributed
