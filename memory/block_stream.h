// Slabs of weights that come to a few slots on the device, before they are asked for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "memory/run_order.h"
#include "memory/slab.h"
#include "memory/slab_peers.h"
#include "memory/transfer_device.h"

namespace atelier::memory {

// The streamed blocks of one component, numbered in running order. hold() is called by one thread
// at a time; everything else from any thread. Made by make(); what is held and lent keeps it alive.
class BlockStream : public std::enable_shared_from_this<BlockStream> {
 public:
  // Where a block rests: a slab on the host, or the tensors that its slab is made of. Among peers:
  // this process's part of a slab, on the host or on the device.
  struct Source {
    std::string name;
    int64_t bytes = 0;  // of the whole slab
    at::Tensor slab;
    std::vector<std::pair<SlabSlice, at::Tensor>> slices;  // where there is no slab
    bool stays = false;  // once it came, until the stream leaves: it has a slot of its own
  };
  struct Stats {
    int64_t copied_bytes = 0, copies = 0, late = 0;
    int64_t away_bytes = 0;  // of slots that are not there
    double waited_seconds = 0.0;
  };
  // A slab on the device, and what keeps it there.
  struct Lease {
    at::Tensor slab;  // undefined: the block is not there
    std::shared_ptr<void> held;
  };

  // Takes `slots` slots of `slot_bytes` from `transfer`, which blocks that do not stay share; with
  // `is_away` when it comes. Throws Error{kOutOfMemory}.
  static std::shared_ptr<BlockStream> make(TransferDevice& transfer, int64_t blocks, int64_t slots,
                                           int64_t slot_bytes, bool is_away = false);
  ~BlockStream();
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  // Takes all blocks and starts copying the first unless it is away; is called first. Returns the
  // bytes of pinned memory that reading takes. `peers`: the processes that slabs are divided among;
  // blocks come from the first hold() on, and whoever calls it gathers.
  int64_t start(std::vector<Source> sources, std::shared_ptr<SlabPeers> peers = nullptr);
  // Lets go of the device and of the slots that are not held, after the calls of other threads
  // that use it. A hold() that waits for its block ends with Error{kInternal}, and so do later
  // ones.
  void close();

  // Lets go of the slots; of one that is held when it is let go. No block is held until come().
  void leave();
  // The blocks run once more, from the last one to the first, and slots that none of them needs any
  // more leave.
  void give_way();
  // Takes slots, of `room` bytes at most, and starts copying the first blocks into them; gives way
  // no longer. Throws Error{kOutOfMemory}.
  void come(int64_t room = INT64_MAX);
  // Whether a block has no slot to come to, for having given way.
  bool has_left(int64_t block);
  // Bytes of all slots, and of those that are there.
  std::pair<int64_t, int64_t> slot_bytes() const;

  // The block is on the device until the result is let go, for what this thread computes. The
  // result points to its slab. One that does not run, and is only drawn from, says nothing of what
  // comes next. Throws Error{kOutOfMemory} when all slots are held.
  std::shared_ptr<void> hold(int64_t block, bool runs = true);
  // The block's slab if it is on the device, or on its way there.
  Lease lease(int64_t block);
  // Returns a copy of `value` on the device, which the stream does not keep.
  at::Tensor fetch(const at::Tensor& value);
  // Forgets the copy of a block that is not held: it comes as it rests when what this thread has
  // queued for computing is done.
  void forget(int64_t block);

  at::Device device() const { return device_; }
  Stats stats() const;

 private:
  struct Slot {
    at::Tensor memory;  // undefined: it is away
    int64_t bytes = 0;
    int64_t owner = -1;       // the block that stays here; -1: others pass
    int64_t block = -1;       // -1: none
    int64_t load = 0;         // grows with each block that is to come here
    bool is_queued = false;   // the copy, that is; `arrived` tells when it is done
    bool is_claimed = false;  // somebody has waited for that, or does
    Ticket arrived;
    Ticket free_after;           // what was computed with the block before
    std::exception_ptr failure;  // why it does not come
    int64_t holds = 0;
    int64_t last_held = 0;  // a count
  };
  // A block that is to be read into pinned memory first.
  struct Reading {
    size_t slot = 0;
    int64_t load = 0, block = 0;
  };
  struct Staging {
    at::Tensor memory;
    Ticket copied;
  };

  BlockStream(TransferDevice& transfer, int64_t blocks);

  // `runs`: the block does, and is not just drawn from.
  std::shared_ptr<void> keep(Slot& slot, bool runs);
  void release(Slot& slot, bool has_run);
  Slot* slot_of(int64_t block);
  // Finds a slot that nobody holds and, unless `any`, with no block of `needed`; null: none is.
  Slot* free_slot(const std::vector<int64_t>& needed, bool any);
  // The slot that `block` may come to, its own or a free one; null: none is.
  Slot* slot_for(int64_t block, const std::vector<int64_t>& needed, bool any);
  // The blocks that run next, as far as there are slots beside that which is held.
  std::vector<int64_t> upcoming() const;
  // Whether a block that passes is still to come while this gives way.
  bool is_awaited();
  void take_memory(Slot& slot);
  void let_go(Slot& slot);
  void load(Slot& slot, int64_t block);
  Ticket bring(Slot& slot, const Source& source);
  void load_first(int64_t room = INT64_MAX);
  void load_ahead();
  void wait_until_queued(std::unique_lock<std::mutex>& lock, Slot& slot);
  // With the lock: the device, which close() leaves alone until the result is let go, without the
  // lock. Null once the stream is closing.
  std::shared_ptr<TransferDevice> use_transfer();
  void compute_after(TransferDevice& transfer, const Ticket& ticket);
  void read();
  void read_into(Staging& staging, const Reading& reading);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  TransferDevice* transfer_;  // null once it is closed
  int64_t users_ = 0;         // of use_transfer()
  const at::Device device_;
  std::vector<Source> sources_;
  std::shared_ptr<SlabPeers> peers_;  // null: slabs are whole
  std::vector<Slot> slots_;
  RunOrder order_;
  int64_t holds_ = 0;  // ever
  Stats stats_;
  std::exception_ptr failure_;  // of letting go
  std::deque<Reading> readings_;
  std::vector<Staging> staging_;
  bool is_closing_ = false, is_away_ = false, gives_way_ = false;
  int64_t running_ = -1;  // the block that was held last
  int64_t shared_ = 0;    // slots that blocks pass through; those of blocks that stay come behind
  std::thread reader_;
};

}  // namespace atelier::memory
