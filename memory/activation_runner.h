// Blocks of a training step within an activation budget.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "memory/activation_budget.h"
#include "memory/activation_plan.h"
#include "memory/recompute.h"

namespace atelier::memory {

// The first forward pass of each sequence of blocks and shapes recomputes everything and measures;
// later ones follow a plan made of that. Gradients are the same to the bit whatever the plan. Ranks
// that share out rows (SequenceScope) have one plan, of the highest costs and the least memory
// among them.
//
// Not thread-safe. Blocks and the inner runner outlive the graphs made here.
class ActivationRunner final : public BlockRunner {
 public:
  // Is told of each plan when it is first followed.
  using OnPlan = std::function<void(const ActivationPlan& plan)>;

  // `device` is where the blocks run. `offloader`: takes what plans offload; null: nothing is.
  // `on_gradients`: see RecomputeOptions.
  ActivationRunner(BlockRunner& inner, const ActivationBudget& budget, at::Device device,
                   OnPlan on_plan = {}, std::shared_ptr<Offloader> offloader = nullptr,
                   std::function<void(const Block&)> on_gradients = {});

  // Begins a forward pass: the runs from now on belong to one backward pass.
  void begin_pass();

  // The pass did not fit, and what was made of it is dropped: from now on plans need a tenth less
  // than the one that it followed, and at last nothing is kept or measured. False: nothing less is
  // left.
  bool tighten();
  // What tighten() would say, without doing it.
  bool can_tighten() const;
  const ActivationBudget& budget() const { return budget_; }
  // Between passes: plans are made anew, within it.
  void set_budget(const ActivationBudget& budget);
  // The peak of the plan that this pass follows; 0: there is none yet.
  int64_t planned_bytes() const { return plan_ != nullptr ? plan_->peak_bytes : 0; }

  // Blocks that nobody trains, without grad mode and inside other blocks are not planned. Blocks
  // that the inner runner holds, and those with sinks, are recomputed whatever the budget.
  Tensors run(Block& block, const Tensors& inputs) override;

  std::shared_ptr<void> hold(Block& block) override;

 private:
  using Costs = std::shared_ptr<BlockCosts>;
  // What is known of a forward pass that was measured from its beginning to its end.
  struct Pass {
    std::vector<Costs> runs;
    // Keys: the first planned run, the bytes kept before it, and the bytes in host memory.
    std::map<std::tuple<size_t, int64_t, int64_t>, ActivationPlan> plans;
  };

  Costs costs_of(const Block& block, const Tensors& inputs, const Tensors& trained,
                 bool always_recomputed);
  void follow(const Costs& costs);
  ActivationPlan plan_from(size_t place) const;

  BlockRunner& inner_;
  RecomputeRunner recompute_;
  ActivationBudget budget_;
  at::Device device_;
  bool keeps_nothing_ = false;  // and measures nothing
  OnPlan on_plan_;
  std::shared_ptr<Offloader> offloader_;
  std::map<std::string, Costs> costs_;  // by kind, shapes, and what is trained
  std::list<Pass> passes_;              // the latest first
  std::vector<Costs> runs_;             // of this pass
  int64_t spent_ = 0;                   // bytes that this pass keeps so far
  int64_t offloaded_ = 0;               // bytes that it has sent to the host
  Pass* guide_ = nullptr;               // a pass that began like this one; null: none
  const ActivationPlan* plan_ = nullptr;
};

}  // namespace atelier::memory
