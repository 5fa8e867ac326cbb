// Where the tensors that the optimizer moves live: their values, the way of gradients to them, and
// the way of moved values back.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/block.h"

#include "host/model/model_loader.h"
#include "host/optim/optimizer.h"
#include "host/order/training.h"
#include "host/parameters/divided_weights.h"
#include "host/parameters/exchange_plan.h"
#include "host/parameters/gradient_sums.h"
#include "host/parameters/host_parameters.h"
#include "host/parameters/layout.h"
#include "host/parameters/selection.h"
#include "host/parameters/shard_files.h"
#include "host/parameters/sharded_tensors.h"

namespace atelier::parameters {

// Parameters are leaves on the compute device. They live on the host when the user wants it, or
// when the weights that are trained rest there (HostParameters). The processes of a group share
// them out as the configuration says: tensors in shards (ShardedTensors), and weights of divided
// blocks with their blocks (DividedWeights).
//
// A step goes through these states in their order; a call that comes in another one throws
// Error{kInternal}. give_up() leads from each of them to kWhole.
//
//   kWhole     the model computes with what the optimizer moved     begin_step() -> kPasses
//   kComing    the same, but that of others comes as blocks run     begin_step() -> kPasses
//   kPasses    begin_pass() and backward(), for each batch          end_passes() -> kSent
//   kSent      of several processes, what all have                  gather_status() -> kGathered
//   kGathered  the same, and of one process kSent               take_gradients() -> kMoving
//   kMoving    the optimizer works                                  end_step() -> kWhole, kComing
//
// Not thread-safe, but that end_block() may be called by the thread of a backward pass.
class ParameterPlacement {
 public:
  // `model` and `group` outlive this. group: null: this process is alone; otherwise all processes
  // come here.
  ParameterPlacement(model::LoadedModel& model, const Selection& selection,
                     const order::Training& config, const Layout& layout,
                     distributed::Group* group = nullptr);
  ~ParameterPlacement();
  ParameterPlacement(const ParameterPlacement&) = delete;
  ParameterPlacement& operator=(const ParameterPlacement&) = delete;

  // Trains a tensor from now on. Returns what the optimizer moves for it. Called in the order in
  // which the optimizer has its parameters.
  optim::Parameter add(const Selection::TrainedWeight& trained);
  optim::Parameter add(std::string name, const at::Tensor& leaf);
  // `wholes`: all that was added. Called once; all that follows is called behind this.
  void share_out(std::vector<optim::Group> wholes);
  const std::vector<optim::Group>& wholes() const { return wholes_; }
  // What the optimizer of this process moves of these: the same, or shards.
  const std::vector<optim::Group>& moved() const { return moved_; }

  bool is_on_host() const { return mode_.on_host; }
  // While what is returned lives, memory is allocated where the parameters are. May be null.
  std::unique_ptr<memory::HostScope> allocate_beside() const;
  // One line for the user; empty: there is nothing to say.
  std::string note() const;

  bool is_shared() const { return mode_.zero_stage > 0; }
  // How what the optimizer moves adds up over the processes.
  optim::Sum sum() const;
  ShardOwner owner() const;
  // Whether this process has all of what add() returned. Where it has not, what stands there for a
  // part of it has shape and dtype alone, on the meta device, and moved() is all that there is.
  bool has_wholes() const { return divided_ == nullptr; }

  // A step runs its blocks with this.
  BlockRunner& runner(BlockRunner& inner);
  // A step begins: see GradientSums::open().
  void begin_step(const std::string& kind, int64_t passes);
  // Before each forward pass.
  void begin_pass();
  // In a backward pass: weights of the block that have a sink have got their gradients for one run
  // of it. See memory::RecomputeOptions.
  void end_block(const Block& block);
  // The backward pass of `loss`; gradients have arrived when it returns. `total`: the loss of the
  // step so far. `is_last`: of the passes of this process. `move`: parameters may be moved while
  // the pass goes on, as their gradients arrive, where no other process has gradients for them.
  void backward(const at::Tensor& loss, const at::Tensor& total, bool is_last,
                const std::optional<HostGradients::Move>& move);
  // No more passes come.
  void end_passes();
  // Where there are several processes, once in a step and behind give_up(): see GradientSums.
  at::Tensor gather_status(const at::Tensor& loss, const std::vector<double>& numbers);
  // What the optimizer moves has the gradients of all processes, and `loss` becomes theirs. What
  // the move needs to know of them: see optim::measure_gradients().
  optim::GradientNorm take_gradients(at::Tensor& loss, double max_norm);
  // The optimizer has moved: gradients are dropped, and values are published ahead. Returns whether
  // some had moved on the way.
  bool end_step();
  // The step does not come to its end: drops what is left of it. Returns whether this step, or one
  // that was given up before, had begun to move parameters. Waits for the other processes where
  // they count on gradients of this one.
  bool give_up();

  // The model computes with the values that the optimizer moves from now on. Where they are shared
  // out, all processes come here.
  void publish();
  // Publishes ahead of a step: values of other processes may come while the blocks of its first
  // forward pass run with runner(). Until complete() nothing else reads what add() returned, and
  // nothing moves.
  void publish_ahead();
  // They have come. Where they are shared out, all processes come here.
  void complete();
  // Somebody else has written what add() returned, whole: the optimizer goes on from there.
  void adopt();

  // What gradients take now.
  struct Bytes {
    int64_t device = 0, host = 0;
  };
  Bytes gradient_bytes() const;

 private:
  enum class State { kWhole, kComing, kPasses, kSent, kGathered, kMoving };
  void require(std::initializer_list<State> states, const char* call) const;
  void exchange(const std::vector<optim::Parameter*>& tensors);
  std::vector<ExchangedTensor> known(const std::vector<std::string>& names) const;
  void clear_gradients();

  model::LoadedModel& model_;
  const Selection& selection_;
  const TrainedBlocks blocks_;
  distributed::Group* const group_;
  RankMode mode_;                                         // see summing_mode()
  std::unique_ptr<memory::TransferDevice> own_transfer_;  // of a model that nothing of is streamed
  ShardMemory shard_memory_;
  std::unique_ptr<HostParameters> host_;     // null: parameters are on the device
  distributed::ShardGroups shards_;          // of what is shared out
  std::unique_ptr<DividedWeights> divided_;  // null: nothing trained is divided
  std::vector<optim::Group> wholes_, moved_;
  std::optional<ExchangePlan> plan_;  // nullopt, as sums_: this process is alone
  std::optional<GradientSums> sums_;
  std::optional<ShardedTensors> shared_;
  std::unique_ptr<BlockRunner> runner_;
  State state_ = State::kWhole;
  bool is_spoilt_ = false;  // a step that was given up had moved parameters
};

}  // namespace atelier::parameters
