// Where the tensors that the optimizer moves live: their values, and the way of gradients to them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/block.h"

#include "host/distributed/gradients.h"
#include "host/model/model_loader.h"
#include "host/optim/optimizer.h"
#include "host/order/training.h"
#include "host/parameters/host_gradients.h"
#include "host/parameters/piece_files.h"
#include "host/parameters/selection.h"
#include "memory/residency.h"

namespace atelier::parameters {

// One answer to "where do parameters live", which a step follows without asking which one it is.
// The defaults are those of parameters that are the leaves of the model themselves. Not
// thread-safe.
class ParameterPlacement {
 public:
  virtual ~ParameterPlacement();

  // Trains a tensor from now on. Returns what the optimizer moves for it. Called in the order in
  // which the optimizer has its parameters.
  virtual optim::Parameter add(const Selection::TrainedWeight& trained) = 0;
  virtual optim::Parameter add(std::string name, const at::Tensor& leaf) = 0;

  virtual bool is_on_host() const { return false; }
  // While what is returned lives, memory is allocated where the parameters are. May be null.
  virtual std::unique_ptr<memory::HostScope> allocate_beside() const { return nullptr; }
  // One line for the user; empty: there is nothing to say.
  virtual std::string note() const { return {}; }

  // What the optimizer of this process moves of `wholes`, all that was added, and how it adds up
  // over the processes. Called once.
  virtual std::vector<optim::Group> share_out(const std::vector<optim::Group>& wholes) {
    return wholes;
  }
  virtual optim::Sum sum() const { return {}; }
  virtual bool is_shared() const { return false; }
  virtual PieceOwner owner() const { return {}; }
  // What sums the gradients of the leaves over the processes of `group`; from take_gradients() on
  // what the optimizer moves has them.
  virtual std::unique_ptr<distributed::GradientSums> sum_gradients(distributed::Group& group,
                                                                   std::vector<at::Tensor> leaves);
  virtual void take_gradients() {}
  // Whether this process has all of what add() returned. Where it has not, what stands there for a
  // part of it has shape and dtype alone, on the meta device, and the pieces of share_out() are all
  // that there is.
  virtual bool has_wholes() const { return true; }

  // A step runs its blocks with this.
  virtual BlockRunner& runner(BlockRunner& inner) { return inner; }
  // Before each forward pass.
  virtual void begin_pass() {}
  // In a backward pass: weights of the block that have a sink have got their gradients for one run
  // of it. See memory::RecomputeOptions.
  virtual void end_block(const Block& /*block*/) {}
  // The backward pass of `loss`; gradients have arrived when it returns. `total`: the loss of the
  // step so far. `move`: parameters may be moved while the pass goes on, as their gradients arrive.
  virtual void backward(const at::Tensor& loss, const at::Tensor& total,
                        const std::optional<HostGradients::Move>& move);
  // Norms of the gradients that such moves have used up, for optim::measure_gradients().
  virtual NamedTensors norms() const { return {}; }
  // Whether such a move has changed something since clear_gradients().
  virtual bool has_moved() const { return false; }
  // The step does not come to its end: drops the work that waits.
  virtual void give_up() {}
  // Drops what is kept of gradients beside the parameters' own.
  virtual void clear_gradients() {}
  // The model computes with the values that the optimizer moves from now on. Where they are shared
  // out, all processes come here.
  virtual void publish() {}
  // Publishes ahead of a step: values of other processes may come while the blocks of its first
  // forward pass run with runner(). Until complete() nothing else reads what add() returned, and
  // nothing moves.
  virtual void publish_ahead() { publish(); }
  // They have come. Where they are shared out, all processes come here.
  virtual void complete() {}
  // Somebody else has written what add() returned, whole: the optimizer goes on from there.
  virtual void adopt() { publish(); }

  // What gradients take now. `wholes`: all that was added.
  struct Bytes {
    int64_t device = 0, host = 0;
  };
  virtual Bytes gradient_bytes(const std::vector<optim::Group>& wholes) const;
};

// Parameters live on the host when the user wants it, or when the weights that are trained rest
// there, and otherwise on the compute device; the processes of `group` share them out as `config`
// says. `model` and `group` outlive what is returned. group: null: this process is alone.
std::unique_ptr<ParameterPlacement> place_parameters(model::LoadedModel& model,
                                                     const Selection& selection,
                                                     const order::Training& config,
                                                     distributed::Group* group = nullptr);

}  // namespace atelier::parameters
