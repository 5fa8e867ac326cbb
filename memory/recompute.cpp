#include "memory/recompute.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <unordered_set>

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "atelier/error.h"
#include "atelier/nn/layers.h"

#include "memory/live_bytes.h"

namespace atelier::memory {

struct RecomputeShared {
  RecomputeShared(BlockRunner& runner, RecomputeRunner::Planner plan)
      : inner(runner), planner(std::move(plan)) {}
  BlockRunner& inner;
  RecomputeRunner::Planner planner;

  // Whether the leaves of this block are still to be looked at.
  bool is_new(const Block& block) {
    std::lock_guard lock(mutex);
    return checked.insert(&block).second;
  }

 private:
  std::mutex mutex;
  std::unordered_set<const Block*> checked;
};

namespace {

using at::Tensor;
using torch::autograd::Node;

// Default generators that a block may draw from, with their states.
class Generators {
 public:
  // Of the CPU and of every other device among `inputs`.
  static Generators capture(const Tensors& inputs) {
    Generators result;
    result.add(at::Device(at::kCPU));
    for (const Tensor& t : inputs) {
      if (!t.defined() || t.is_cpu()) continue;
      const bool known = std::any_of(result.entries_.begin(), result.entries_.end(),
                                     [&](const Entry& e) { return e.device == t.device(); });
      if (!known) result.add(t.device());
    }
    return result;
  }

  // Forgets the generators that were not drawn from since.
  void keep_used() {
    std::erase_if(entries_,
                  [](const Entry& e) { return at::equal(e.state, state_of(e.generator)); });
  }

  // Sets the states, and keeps those that they replace.
  void swap_states() {
    for (Entry& e : entries_) {
      const Tensor wanted = e.state;
      e.state = state_of(e.generator);
      set_state(e.generator, wanted);
    }
  }

  void clear() { entries_.clear(); }

  int64_t bytes() const {
    int64_t bytes = 0;
    for (const Entry& e : entries_) bytes += static_cast<int64_t>(e.state.nbytes());
    return bytes;
  }

 private:
  struct Entry {
    at::Device device;
    at::Generator generator;
    Tensor state;
  };

  void add(at::Device device) {
    const at::Generator generator = at::globalContext().defaultGenerator(device);
    entries_.push_back({device, generator, state_of(generator)});
  }
  static Tensor state_of(const at::Generator& generator) {
    at::Generator g = generator;
    std::lock_guard lock(g.mutex());
    return g.get_state();
  }
  static void set_state(const at::Generator& generator, const Tensor& state) {
    at::Generator g = generator;
    std::lock_guard lock(g.mutex());
    g.set_state(state);
  }

  std::vector<Entry> entries_;
};

// Sets the generators' states for a scope.
class RestoreGenerators {
 public:
  explicit RestoreGenerators(const Generators& to) : generators_(to) { generators_.swap_states(); }
  ~RestoreGenerators() { generators_.swap_states(); }
  RestoreGenerators(const RestoreGenerators&) = delete;
  RestoreGenerators& operator=(const RestoreGenerators&) = delete;

 private:
  Generators generators_;
};

[[noreturn]] void fail(const Block& block, const std::string& what, std::string hint = {}) {
  throw Error(ErrorCode::kInternal, "recompute: block '" + block.path() + "': " + what,
              std::move(hint));
}

bool any_requires_grad(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor& t) { return t.defined() && t.requires_grad(); });
}

// Where the block runs: the first device that is not the CPU.
at::Device device_of(const Tensors& inputs) {
  for (const Tensor& t : inputs) {
    if (t.defined() && !t.is_cpu()) return t.device();
  }
  return {at::kCPU};
}

// What `tensors` hold, every storage once. Allocators of devices give pieces of 512 bytes.
int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  std::unordered_set<const void*> seen;
  for (const Tensor& t : tensors) {
    if (!t.defined() || !seen.insert(t.storage().unsafeGetStorageImpl()).second) continue;
    const auto held = static_cast<int64_t>(t.storage().nbytes());
    bytes += t.is_cpu() ? held : (held + 511) / 512 * 512;
  }
  return bytes;
}

// Fills in what the forward pass of a block costs.
class ForwardMeter final : public ops::RecomputeObserver {
 public:
  ForwardMeter(BlockCosts& costs, at::Device device) : costs_(costs), device_(device) {
    start_ = time();
  }
  void begin() override { operator_start_ = time(); }
  void end(std::string_view op, const Tensors& outputs) override {
    const double seconds = time() - operator_start_;
    if (call_ == costs_.operators.size())
      costs_.operators.push_back({std::string(op), bytes_of(outputs), seconds});
    OperatorCosts& entry = costs_.operators[call_++];
    entry.seconds = std::min(entry.seconds, seconds);
  }
  void finish(const Tensors& outputs) {
    const double seconds = time() - start_;
    costs_.seconds = costs_.runs == 0 ? seconds : std::min(costs_.seconds, seconds);
    costs_.held_bytes = bytes_of(outputs);
    ++costs_.runs;
  }

 private:
  // Seconds from a fixed moment, when the device has done all that it was given.
  double time() const {
    if (!device_.is_cpu()) at::accelerator::synchronizeDevice(device_.index());
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  BlockCosts& costs_;
  at::Device device_;
  double start_ = 0.0, operator_start_ = 0.0;
  size_t call_ = 0;
};

// Leaves of the drawn values stand for weights that are trained elsewhere. Weights that have a leaf
// already belong to a block around this one.
class LentLeaves {
 public:
  explicit LentLeaves(const std::vector<WeightPtr>& sinking) {
    for (const WeightPtr& weight : sinking) {
      if (weight->leaf().defined()) continue;
      weights_.push_back(weight);
      weight->lend_leaf(weight->draw().detach().set_requires_grad(true));
    }
  }
  ~LentLeaves() {
    for (const WeightPtr& weight : weights_) weight->lend_leaf({});
  }
  LentLeaves(const LentLeaves&) = delete;
  LentLeaves& operator=(const LentLeaves&) = delete;

  const std::vector<WeightPtr>& weights() const { return weights_; }

 private:
  std::vector<WeightPtr> weights_;
};

// One run of one block. Its inputs are the block's inputs, then its trained tensors.
struct RecomputeNode final : Node {
  RecomputeNode(std::shared_ptr<RecomputeShared> runner, Block& ran, Tensors trained,
                ops::ActionPlan actions, std::shared_ptr<BlockCosts> measured)
      : shared(std::move(runner)),
        block(ran),
        plan(std::move(actions)),
        params(std::move(trained)),
        costs(std::move(measured)) {
    for (const Tensor& p : params) versions.push_back(p._version());
  }

  std::string name() const override { return "RecomputeBlock"; }

  // Called before apply() when this is the last backward pass: kept outputs can be given away.
  void will_release_variables() override { consume = true; }

  void release_variables() override {
    inputs.clear();
    kept.clear();
    generators.clear();
    released = true;
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;

  // Every leaf of the replayed graph is one of `known`, or its gradient would be lost in silence.
  void check_leaves(const Tensors& outputs, const Tensors& known) const;

  std::shared_ptr<RecomputeShared> shared;
  Block& block;
  ops::ActionPlan plan;
  std::vector<torch::autograd::SavedVariable> inputs;
  Tensors params;
  std::vector<uint32_t> versions;  // of params
  std::vector<ops::KeptOutput> kept;
  Generators generators;
  std::shared_ptr<BlockCosts> costs;  // null: nothing is measured
  bool consume = false;
  bool released = false;
};

torch::autograd::variable_list RecomputeNode::apply(torch::autograd::variable_list&& grads) {
  if (at::GradMode::is_enabled()) fail(block, "a recomputed block has no double backward");
  if (released) {
    fail(block, "the backward pass ran twice", "keep the graph in the first one");
  }

  // The weights stay for the replay and for the gradient pass.
  const std::shared_ptr<void> weights = shared->inner.hold(block);
  const LentLeaves lent(sinking_weights(block));

  // Gradients are asked for the inputs and trained tensors that this pass wants, and for all leaves
  // that are lent.
  Tensors replay_inputs(inputs.size()), wanted;
  std::vector<size_t> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor input = inputs[i].unpack();
    if (!input.defined()) continue;
    replay_inputs[i] = input.detach();
    if (task_should_compute_output(i)) {
      wanted.push_back(replay_inputs[i].set_requires_grad(true));
      places.push_back(i);
    }
  }
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i]._version() != versions[i]) {
      fail(block, "a trained tensor was changed between the forward and the backward pass");
    }
    if (task_should_compute_output(inputs.size() + i)) {
      wanted.push_back(params[i]);
      places.push_back(inputs.size() + i);
    }
  }
  for (const WeightPtr& weight : lent.weights()) wanted.push_back(weight->leaf());

  std::optional<LiveBytes> held;
  if (costs) held.emplace(device_of(replay_inputs));
  Tensors outputs, output_grads;
  {
    RestoreGenerators random(generators);
    at::AutoGradMode enable(true);
    ops::RecomputeScope replay(ops::RecomputeScope::Mode::kReplay, plan, kept, consume);
    Tensors replayed = shared->inner.run(block, replay_inputs);
    if (replay.calls() != kept.size() || replayed.size() != grads.size()) {
      fail(block,
           c10::str(replay.calls(), " operators and ", replayed.size(),
                    " outputs in the replay, recorded were ", kept.size(), " and ", grads.size()),
           "a block must do the same each time it runs");
    }
    for (size_t i = 0; i < replayed.size(); ++i) {
      if (!grads[i].defined() || !replayed[i].requires_grad()) continue;
      outputs.push_back(std::move(replayed[i]));
      output_grads.push_back(std::move(grads[i]));
    }
  }
  if (held) costs->whole_bytes = std::max(costs->whole_bytes, held->now());
  if (shared->is_new(block)) {
    Tensors known = replay_inputs;
    known.insert(known.end(), params.begin(), params.end());
    known.insert(known.end(), wanted.begin(), wanted.end());
    check_leaves(outputs, known);
  }
  replay_inputs.clear();

  torch::autograd::variable_list result(inputs.size() + params.size());
  if (outputs.empty() || wanted.empty()) return result;
  // The scopes are closed: a block inside this one replays in the pass below, and on its own.
  auto given = torch::autograd::grad(outputs, wanted, output_grads, /*retain_graph=*/false,
                                     /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < places.size(); ++i) result[places[i]] = std::move(given[i]);
  for (size_t i = places.size(); i < given.size(); ++i) {
    if (given[i].defined()) lent.weights()[i - places.size()]->sink()->add(std::move(given[i]));
  }
  if (held) costs->working_bytes = std::max(costs->working_bytes, held->peak());
  return result;
}

void RecomputeNode::check_leaves(const Tensors& outputs, const Tensors& known) const {
  std::vector<Node*> todo;
  std::unordered_set<Node*> seen;
  auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) todo.push_back(node);
  };
  for (const Tensor& output : outputs) visit(output.grad_fn().get());
  while (!todo.empty()) {
    Node* node = todo.back();
    todo.pop_back();
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      auto is_leaf = [&](const Tensor& t) { return t.is_same(leaf->variable); };
      if (std::none_of(known.begin(), known.end(), is_leaf)) {
        fail(block,
             c10::str("it trains a tensor of shape ", leaf->variable.sizes(),
                      " that is not a weight or an adapter of the block"),
             "declare it as a weight");
      }
    }
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
}

}  // namespace

Tensors trained_tensors(Block& block) {
  Tensors result;
  block.visit([&](nn::Module& module) {
    for (const WeightPtr& weight : module.weights()) {
      if (weight->leaf().defined()) result.push_back(weight->leaf());
    }
    if (auto* linear = dynamic_cast<nn::Linear*>(&module)) {
      for (const ops::Adapter& adapter : linear->adapters) {
        if (adapter.scale == 0) continue;
        for (const Tensor& t : {adapter.a, adapter.b}) {
          if (t.requires_grad()) result.push_back(t);
        }
      }
    }
  });
  return result;
}

std::vector<WeightPtr> sinking_weights(Block& block) {
  std::vector<WeightPtr> result;
  block.visit([&](nn::Module& module) {
    for (const WeightPtr& weight : module.weights()) {
      if (weight->sink() != nullptr) result.push_back(weight);
    }
  });
  return result;
}

RecomputeRunner::RecomputeRunner(BlockRunner& inner, Planner planner)
    : shared_(std::make_shared<RecomputeShared>(inner, std::move(planner))) {}
RecomputeRunner::~RecomputeRunner() = default;

std::shared_ptr<void> RecomputeRunner::hold(Block& block) {
  return shared_->inner.hold(block);
}

Tensors RecomputeRunner::run(Block& block, const Tensors& inputs) {
  return run(block, inputs, shared_->planner ? shared_->planner(block) : ops::ActionPlan());
}

Tensors RecomputeRunner::run(Block& block, const Tensors& inputs, ops::ActionPlan plan,
                             std::shared_ptr<BlockCosts> costs) {
  // A block inside a block is not part of the outer one's plan.
  ops::RecomputeScope::Suspend suspend;
  if (!at::GradMode::is_enabled()) return shared_->inner.run(block, inputs);
  Tensors params = trained_tensors(block);
  if (!any_requires_grad(inputs) && !any_requires_grad(params) && sinking_weights(block).empty()) {
    return shared_->inner.run(block, inputs);
  }

  std::shared_ptr<RecomputeNode> node(
      new RecomputeNode(shared_, block, std::move(params), std::move(plan), std::move(costs)),
      torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs, node->params));
  // Saved before the block runs, so that its own changes in place are noticed.
  for (const Tensor& input : inputs) node->inputs.emplace_back(input, /*is_output=*/false);

  Tensors outputs;
  {
    Generators generators = Generators::capture(inputs);
    at::AutoGradMode disable(false);
    std::optional<ForwardMeter> meter;
    if (node->costs) meter.emplace(*node->costs, device_of(inputs));
    ops::RecomputeScope record(ops::RecomputeScope::Mode::kRecord, node->plan, node->kept,
                               /*consume=*/false, meter ? &*meter : nullptr);
    outputs = shared_->inner.run(block, inputs);
    if (meter) meter->finish(outputs);
    generators.keep_used();
    if (node->costs) node->costs->held_bytes += generators.bytes();
    node->generators = std::move(generators);
  }
  for (Tensor& output : outputs) {
    // A tensor of its own: neither an input handed back nor a view, and free of the kept ones.
    output = output.tensor_data();
    if (torch::autograd::isDifferentiableType(output.scalar_type())) {
      torch::autograd::set_history(output, node);
    } else {
      node->add_input_metadata(Node::undefined_input{});
    }
  }
  return outputs;
}

}  // namespace atelier::memory
