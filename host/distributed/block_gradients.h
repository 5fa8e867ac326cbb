// Gradients of blocks that are divided among ranks: each rank gets its part of the sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/block.h"

#include "host/distributed/group.h"
#include "host/distributed/shards.h"

namespace atelier::distributed {

// The gradients that the tensors of a block get in one run of it lie in flat buffers, which hold
// the parts of all ranks one behind the other, and are summed while the backward pass goes on: no
// rank keeps more than two blocks of them beside its part of the sums. All ranks send the same
// blocks in the same order; a gradient that does not come on a rank counts as zero, and one that
// comes nowhere is undefined. Not thread-safe, but that take() and send() may be called on
// autograd's thread while the caller waits for the backward pass.
class BlockGradients {
 public:
  // `groups.shards`: the ranks that blocks are divided among; they exchange nothing else in that
  // group. `on_host`: whether parts are summed in host memory.
  BlockGradients(Group& world, ShardGroups groups, bool on_host);

  // A tensor of `block` whose gradients have these options. extents[r]: what of it rank r of the
  // shards keeps; FlatLayout::Extent::at is not read. Returns its place.
  size_t add(const Block& block, std::vector<FlatLayout::Extent> extents,
             const at::TensorOptions& options);

  // A gradient of the tensor `place`, whole.
  void take(size_t place, const at::Tensor& gradient);
  // The tensors of the block have the gradients that they get for one run of it.
  void send(const Block& block);
  // Waits for what is under way.
  void settle();

  // All ranks come here when their backward passes are through: adds up over groups.
  void finish();
  // After finish(): this rank's part of the sum, flat; undefined where no rank has a gradient.
  at::Tensor piece(size_t place) const;
  // Drops all sums. Nothing is under way.
  void clear();

  // Bytes of this rank's parts of sums, and of blocks whose gradients are whole, now.
  int64_t sum_bytes() const;
  int64_t bytes_under_way() const;

 private:
  // Gradients of one block and dtype.
  struct Bucket {
    at::TensorOptions options;
    std::vector<int64_t> counts;  // of numbers, by rank
    at::Tensor values = {};       // [ranks, numbers of a part], in a pass; undefined: none came
    at::Tensor sum = {};          // this rank's part of what was sent; undefined: nothing was
    int64_t length() const;       // of a part
  };
  struct Shared {
    size_t bucket;
    std::vector<FlatLayout::Extent> extents;
    bool has = false;  // a gradient in this step
  };
  struct Sending {
    size_t bucket;
    at::Tensor values, part = {};
    Ticket sent = {};
  };

  void count();
  void add_groups();

  Group& world_;
  const ShardGroups groups_;
  const bool on_host_;
  std::vector<Bucket> buckets_;
  std::map<const Block*, std::vector<size_t>> buckets_of_;
  std::vector<Shared> shared_;      // by place
  std::vector<Sending> under_way_;  // of the block that was sent last
};

}  // namespace atelier::distributed
