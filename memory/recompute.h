// Blocks that are run again in the backward pass instead of being remembered.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "atelier/block.h"
#include "atelier/host/recompute_scope.h"

#include "memory/activation_offload.h"

namespace atelier::memory {

// Tensors may be undefined.
bool any_requires_grad(const Tensors& tensors);

// What one operator call of a block costs: the bytes that keeping its outputs holds, and the time
// that computing them again takes.
struct OperatorCosts {
  std::string name;
  int64_t bytes = 0;
  double seconds = 0.0;
  bool is_unread = false;  // no gradient reads its values: kSkip is as good as kKeep
};

// What the blocks of one kind and shape cost. Times are the shortest of all measured runs.
struct BlockCosts {
  std::vector<OperatorCosts> operators;  // in call order
  double seconds = 0.0;                  // of the whole forward pass
  int64_t held_bytes = 0;                // of a recomputed run beside what it keeps: its outputs
  int64_t whole_bytes = 0;               // that a run holds of which nothing is recomputed
  int64_t working_bytes =
      0;             // most that replay and backward pass hold at once when nothing is kept
  int64_t runs = 0;  // that were measured
  bool knows_unread = false;       // the operators were tried
  bool always_recomputed = false;  // its weights do not stay for a plain backward pass
};

struct RecomputeOptions {
  // Takes outputs that the plan offloads. Null: they are kept.
  std::shared_ptr<Offloader> offloader;
  // Sends there too what one block gave to the next, when two more blocks have run.
  bool offloads_inputs = false;
  // Called in a backward pass, on its thread, when weights of the block that have a sink have given
  // the gradients that they get for one run of it. Empty: nobody asks.
  std::function<void(const Block& block)> on_gradients = {};
};

struct RecomputeState;  // what the nodes of one runner have in common

// Gives every block one autograd node that saves the block's inputs and, of the operators inside,
// only what the plan keeps. In the backward pass the block runs again with the generators put back
// as they were, and its gradients are those of the plain run to the bit.
//
// The inner runner holds the block while it runs again and its gradients are made. Gradients of
// weights that have a sink go there, in every backward pass that comes by.
//
// Without grad mode, or where neither inputs nor weights are trained, the block just runs. Blocks
// and the inner runner outlive the graphs made here. A block must not write into an operator's
// output, and it has no double backward. Not thread-safe; backward passes may run on other threads.
class RecomputeRunner final : public BlockRunner {
 public:
  // Which operator outputs of a block are kept; asked once for each run of a block.
  using Planner = std::function<ops::ActionPlan(const Block& block)>;

  // `inner` runs the block itself, both times. By default every operator is recomputed.
  explicit RecomputeRunner(BlockRunner& inner, Planner planner = {}, RecomputeOptions options = {});
  ~RecomputeRunner() override;

  // Throws Error{kInternal} from the backward pass when the block did something else the second
  // time, when an input, a kept output or a trained weight was changed in between, or when it
  // trains a tensor that is not one of its weights or adapters.
  Tensors run(Block& block, const Tensors& inputs) override;

  // Runs with this plan. Fills in `costs` unless it is null: what the forward pass costs now,
  // bytes in the backward pass, which has to come for them to be known. A measured run keeps
  // nothing, and waits for the device before and after each operator. The first backward pass also
  // finds the operators whose values no gradient reads: with NaN and with very large values in
  // their place the gradients stay the same.
  Tensors run(Block& block, const Tensors& inputs, ops::ActionPlan plan,
              std::shared_ptr<BlockCosts> costs = nullptr);

  std::shared_ptr<void> hold(Block& block) override;

 private:
  std::shared_ptr<RecomputeState> shared_;
};

// The trained tensors of a block and of all below it, each once: leaves of its weights, adapters of
// its linear layers.
Tensors trained_tensors(Block& block);

// The weights of a block and of all below it that have a sink.
std::vector<WeightPtr> sinking_weights(Block& block);

}  // namespace atelier::memory
