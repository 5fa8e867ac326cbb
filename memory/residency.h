// Where the weights of a component's blocks rest, and their way to the device and back.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "atelier/block.h"

#include "memory/shared_blocks.h"
#include "memory/slab_peers.h"
#include "memory/transfer_device.h"

namespace atelier::memory {

enum class Place {
  kDevice,  // always there
  kHost,    // in pinned memory
  kDisk,    // in mapped files
};

class BlockStream;

// Among components that share one, a single one has blocks on the device: when a block
// of another one is wanted, they leave. What is held then leaves when it is let go. Together they
// never have more than the largest of them has alone.
class ResidencyGroup {
 public:
  // A block of `stream` is to be held, or drawn from where it is divided.
  void take(const std::shared_ptr<BlockStream>& stream, int64_t block);
  // The next turn is that of `stream`. The one whose turn it is runs its blocks once more, from the
  // last one to the first, and the first ones of `stream` come into the places of those that ran.
  void expect(const std::shared_ptr<BlockStream>& stream);
  // Gives the one that is expected the room that there is.
  void pass_on();

 private:
  std::mutex mutex_;
  std::weak_ptr<BlockStream> now_, next_;
};

// Where the blocks of one component rest.
struct ResidencyPlan {
  std::vector<Place> blocks;  // one for each block in running order
  int64_t prefetch = 2;       // blocks that are on their way while one runs
  // Null: the component is there all the time. Else which blocks stay, once they came, until the
  // turn of another component.
  std::shared_ptr<ResidencyGroup> turns = nullptr;
  std::vector<bool> stays = {};
  // Among how many processes each block is divided; 1: this one has it whole. Of a divided block
  // each process keeps a part where `blocks` says, in the host's memory where that is a file, and
  // it comes from all of them: they run the same blocks in the same order.
  int64_t shards = 1;
  std::shared_ptr<SlabPeers> peers = nullptr;  // those processes; null where `shards` is 1
  // Blocks that rest in the host's memory are there once for all processes of the machine, and
  // nobody writes to them. Not where they are divided.
  SlabSharing shared = {};

  // The component's blocks for which that is so, and null for the others.
  std::vector<Block*> shared_of(std::vector<Block*> all) const;
};

// `resident` of `blocks` stay on the device, spread evenly between the others.
ResidencyPlan spread_residents(int64_t blocks, int64_t resident, Place others,
                               int64_t prefetch = 2);

// Blocks that stay on the device do so in turns with other components, and rest in `others`.
void take_turns(ResidencyPlan& plan, std::shared_ptr<ResidencyGroup> turns, Place others);

// The blocks of one component. A block that is not on the device comes before it runs and leaves by
// being forgotten: nothing is copied back. While one runs, the next ones arrive; which they are is
// learnt from the order of the runs before, so that after the last block of a pass the first one of
// the next comes, and in a backward pass the one before.
//
// Not thread-safe, but holds may be let go on any thread.
class Residency {
 public:
  struct Stats {
    int64_t device_bytes = 0;     // residents, slots, and parts that rest there
    int64_t away_bytes = 0;       // of these, what is not there in the turn of another component
    int64_t host_bytes = 0;       // slabs
    int64_t shared_bytes = 0;     // of these, what the processes of the machine have together
    int64_t copied_bytes = 0;     // to the device since construction
    int64_t copies = 0;           // blocks
    int64_t late = 0;             // of those, how many were asked for before they were queued
    double waited_seconds = 0.0;  // of computing, for copies; known on the simulated device only
  };

  // The blocks' weights are loaded: those of blocks that stay on the device, there; the others on
  // the host, mapped ones for Place::kDisk. Their stores are replaced by ones that draw from the
  // device. `on_demand` are weights that do not come with their block: they are copied when they
  // are drawn (see Model::level_weights()); of divided blocks there are none. `transfer` outlives
  // this. `loading`: of blocks that are divided, of which no more than the part stays when the next
  // one is loaded, or shared; where it is given they are not loaded before.
  Residency(std::vector<Block*> blocks, ResidencyPlan plan, TransferDevice& transfer,
            const std::set<const Weight*>& on_demand = {}, const BlockLoading& loading = {});
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Keeps the block's weights on the device until the result is let go. Null for one that is always
  // there or not of this component. Throws Error{kOutOfMemory} when more blocks are held at once
  // than there are slots.
  std::shared_ptr<void> hold(const Block& block);

  // What of a plain weight of a divided block, which is contiguous there, lies in one process's
  // part: numbers that follow each other, counted flat. There may be none.
  struct Extent {
    int64_t begin = 0, count = 0;
  };
  Extent extent(const Weight& weight, int64_t part) const;
  // Numbers of this process, where they rest, for whoever trains them: [count]. What is written
  // into it by what this thread has queued for computing is drawn after the next refresh() of its
  // block, to which all processes come.
  at::Tensor own_numbers(const Weight& weight) const;
  bool keeps_on_host(const Weight& weight) const;  // them

  // The host's value of a plain weight of a block that is not on the device, for whoever trains it
  // there. What is written into it is drawn after the next refresh() of its block.
  at::Tensor host_value(const Weight& weight) const;
  // Among components that take turns, this one's is the next: see ResidencyGroup::expect().
  void expect();

  // Forgets copies of the block that are on the device or on their way. It is not held.
  void refresh(const Block& block);

  Stats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The dtype of what a weight draws, which is loaded. Draws it only where a store of another kind
// does not say it.
at::ScalarType drawn_dtype(const Weight& weight);

// Runs blocks with their weights on the device. Residencies outlive it.
class StreamingRunner final : public BlockRunner {
 public:
  StreamingRunner(BlockRunner& inner, std::vector<Residency*> components);

  Tensors run(Block& block, const Tensors& inputs) override;
  std::shared_ptr<void> hold(Block& block) override;

 private:
  BlockRunner& inner_;
  std::vector<Residency*> components_;
};

}  // namespace atelier::memory
