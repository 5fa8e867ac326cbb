// Values that come from other processes while the blocks that need them run.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "atelier/block.h"

namespace atelier::parameters {

// Buckets of values come one behind the other, in an order that all processes have, whatever each
// of them runs: those that are needed outside of blocks first, then by blocks. A block's are on
// their way while the one before runs. Not thread-safe.
class ArrivingValues {
 public:
  // Begins to bring a bucket. What is returned waits until it is there, and puts it in its place.
  using Bring = std::function<std::function<void()>(size_t bucket)>;

  // needs[i]: the blocks that read values of bucket i; null stands for what is outside of blocks.
  // `blocks`: all of them in the order in which they run.
  ArrivingValues(const std::vector<const Block*>& blocks,
                 const std::vector<std::vector<const Block*>>& needs, Bring bring);

  // Values of `buckets`, none of which is on its way, come from now on.
  void open(const std::vector<bool>& buckets);
  // Returns when what the block needs has come; null: what is needed outside of blocks.
  void await(const Block* block);
  // Returns when all have come.
  void complete();

 private:
  void begin_until(size_t end);
  void await_until(size_t end);

  Bring bring_;
  std::vector<size_t> order_;            // buckets as they come
  std::map<const Block*, size_t> ends_;  // in order_, behind the last bucket that a block needs
  std::vector<size_t> stops_;            // these without repeats, the lowest first
  std::vector<bool> comes_;              // by bucket
  std::deque<std::function<void()>> under_way_;  // those from arrived_ to begun_
  size_t begun_ = 0, arrived_ = 0;               // places in order_
};

// Waits for a block's values before it runs.
class AwaitingRunner final : public BlockRunner {
 public:
  AwaitingRunner(BlockRunner& inner, ArrivingValues& values) : inner_(inner), values_(values) {}

  Tensors run(Block& block, const Tensors& inputs) override {
    values_.await(&block);
    return inner_.run(block, inputs);
  }
  std::shared_ptr<void> hold(Block& block) override {
    values_.await(&block);
    return inner_.hold(block);
  }

 private:
  BlockRunner& inner_;
  ArrivingValues& values_;
};

}  // namespace atelier::parameters
