#include "memory/recompute.h"

#include <algorithm>
#include <deque>
#include <limits>
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
#include "atelier/host/leaf_scope.h"
#include "atelier/host/weight_state.h"
#include "atelier/nn/layers.h"

#include "memory/clock.h"
#include "memory/generators.h"
#include "memory/gradient_probe.h"
#include "memory/live_bytes.h"
#include "memory/rank_agreement.h"

namespace atelier::memory {

struct RecomputeState {
  RecomputeState(BlockRunner& runner, RecomputeRunner::Planner plan, RecomputeOptions offload)
      : inner(runner), planner(std::move(plan)), options(std::move(offload)) {}
  BlockRunner& inner;
  RecomputeRunner::Planner planner;
  const RecomputeOptions options;

  // The last run, when its graph is still there. Used by the thread that runs the model alone.
  std::weak_ptr<OffloadBatch> latest;
  std::deque<std::weak_ptr<OffloadBatch>> waiting;  // to be sent

  // Whether the leaves of this block are still to be looked at.
  bool is_new(const Block& block) {
    std::lock_guard lock(mutex_);
    return checked_.insert(&block).second;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<const Block*> checked_;
};

bool any_requires_grad(const Tensors& tensors) {
  return std::ranges::any_of(tensors,
                             [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

namespace {

using at::Tensor;
using torch::autograd::Node;

[[noreturn]] void fail(const Block& block, const std::string& what, std::string hint = {}) {
  throw Error(ErrorCode::kInternal, "recompute: block '" + block.path() + "': " + what,
              std::move(hint));
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
    return seconds_now();
  }

  BlockCosts& costs_;
  at::Device device_;
  double start_ = 0.0, operator_start_ = 0.0;
  size_t call_ = 0;
};

// Looks at the values of operators, the first of their outputs, while a block runs again.
class ValueWatch final : public ops::RecomputeObserver {
 public:
  // `kept`: the call whose outputs are held on to.
  explicit ValueWatch(size_t kept = std::numeric_limits<size_t>::max()) : kept_call_(kept) {}

  void begin() override {}
  void end(std::string_view, const Tensors& outputs) override {
    if (storages_.size() == kept_call_) kept_ = outputs;
    storages_.push_back(outputs.at(0).storage().getWeakStorageImpl());
  }

  // Calls whose values nobody holds any more.
  std::vector<size_t> gone() const {
    std::vector<size_t> calls;
    for (size_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].expired()) calls.push_back(i);
    }
    return calls;
  }
  const Tensors& kept() const { return kept_; }

 private:
  size_t kept_call_;
  Tensors kept_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

// Leaves of the drawn values stand for weights that are trained elsewhere. Weights that have a leaf
// already belong to a block around this one.
class LentLeaves {
 public:
  explicit LentLeaves(const std::vector<WeightPtr>& sinking) {
    for (const WeightPtr& weight : sinking) {
      if (weight->state().leaf().defined()) continue;
      weights_.push_back(weight);
      weight->state().lend_leaf(weight->draw().detach().set_requires_grad(true));
    }
  }
  ~LentLeaves() {
    for (const WeightPtr& weight : weights_) weight->state().lend_leaf({});
  }
  LentLeaves(const LentLeaves&) = delete;
  LentLeaves& operator=(const LentLeaves&) = delete;

  const std::vector<WeightPtr>& weights() const { return weights_; }

 private:
  std::vector<WeightPtr> weights_;
};

// Whether it is so for any of the ranks that share out the rows of the block.
bool on_any_rank(bool mine) {
  return most_of_ranks({mine ? 1.0 : 0.0})[0] != 0;
}

// The outputs of a block that ran again, and the gradients that came to them.
struct Replay {
  Tensors outputs, grads;

  Tensors gradients(const Tensors& wanted) const {
    return torch::autograd::grad(outputs, wanted, grads, /*retain_graph=*/false,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  }
};

// One run of one block. Its inputs are the block's inputs, then its trained tensors.
struct RecomputeNode final : Node {
  RecomputeNode(std::shared_ptr<RecomputeState> runner, Block& ran, Tensors trained,
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
    batch.reset();
    released = true;
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  // Gradients of weights that have a sink go there.
  torch::autograd::variable_list run_again(torch::autograd::variable_list grads,
                                           const std::vector<WeightPtr>& sinking);

  // Gives what the plan offloads to the batch, and inputs where they are to leave.
  void load(const Tensors& ran_on);
  // Puts what was sent back, and queues the way back of the run before this one. Returns the
  // inputs.
  Tensors unload();

  Replay replay(const Tensors& replay_inputs, const Tensors& grads, const ops::ActionPlan& actions,
                ops::RecomputeObserver* observer);

  // The inputs and trained tensors whose gradients this pass asks for, and of which edges of this
  // node they are.
  struct Wanted {
    Tensors tensors;
    std::vector<size_t> edges;
  };
  // Detaches the inputs of the replay from the graph.
  Wanted wants(Tensors& replay_inputs);

  // Throws unless every leaf of the replayed graph is an input, a trained tensor or `wanted`: the
  // gradient of another one would be lost in silence.
  void check_leaves(const Tensors& outputs, const Tensors& replay_inputs,
                    const Tensors& wanted) const;

  // Looks for operators whose values no gradient reads, among `calls`: with other values the same
  // gradients come out.
  void find_unread(const std::vector<size_t>& calls, const Tensors& replay_inputs,
                   const Tensors& grads, const Tensors& wanted, const Tensors& gradients);
  bool reads(size_t call, const Tensors& replay_inputs, const Tensors& grads, const Tensors& wanted,
             const Tensors& gradients);

  std::shared_ptr<RecomputeState> shared;
  Block& block;
  ops::ActionPlan plan;
  std::vector<torch::autograd::SavedVariable> inputs;
  Tensors params;
  std::vector<uint32_t> versions;  // of params
  std::vector<ops::KeptOutput> kept;
  Generators generators;
  std::shared_ptr<BlockCosts> costs;  // null: nothing is measured

  // Where the items of the batch belong: first the outputs, by call and place, then inputs.
  std::shared_ptr<OffloadBatch> batch;     // null: there is no offloader
  std::weak_ptr<OffloadBatch> run_before;  // its
  std::vector<std::pair<size_t, size_t>> sent_outputs;
  std::vector<size_t> sent_inputs;

  bool consume = false;
  bool released = false;
};

void RecomputeNode::load(const Tensors& ran_on) {
  batch = std::make_shared<OffloadBatch>(shared->options.offloader);
  run_before = std::exchange(shared->latest, batch);
  for (size_t call = 0; call < kept.size() && call < plan.size(); ++call) {
    if (plan[call] != ops::Action::kOffload) continue;
    for (size_t i = 0; i < kept[call].tensors.size(); ++i) {
      if (!batch->accepts(kept[call].tensors[i])) continue;
      batch->add(std::exchange(kept[call].tensors[i], Tensor()));
      sent_outputs.emplace_back(call, i);
    }
  }
  if (!shared->options.offloads_inputs) return batch->send();

  for (size_t i = 0; i < ran_on.size(); ++i) {
    // What another block gave is held by nobody else.
    const Tensor& input = ran_on[i];
    if (!batch->accepts(input) || dynamic_cast<RecomputeNode*>(input.grad_fn().get()) == nullptr)
      continue;
    inputs[i].unpack();  // notices a change in place
    batch->add(input.detach());
    sent_inputs.push_back(i);
    inputs[i] = torch::autograd::SavedVariable();
  }
  // The last two come back too early for leaving to be worth it.
  shared->waiting.push_back(batch);
  if (shared->waiting.size() <= 2) return;
  const std::shared_ptr<OffloadBatch> first = shared->waiting.front().lock();
  shared->waiting.pop_front();
  if (first) first->send();
}

Tensors RecomputeNode::unload() {
  Tensors carried;
  if (batch) carried = batch->take();
  if (const std::shared_ptr<OffloadBatch> next = run_before.lock()) next->fetch();
  size_t item = 0;
  for (const auto& [call, i] : sent_outputs) {
    kept[call].tensors[i] = carried[item++];
    kept[call].versions[i] = kept[call].tensors[i]._version();
  }
  Tensors result;
  for (const torch::autograd::SavedVariable& input : inputs) result.push_back(input.unpack());
  for (size_t i : sent_inputs) result[i] = carried[item++];
  return result;
}

Replay RecomputeNode::replay(const Tensors& replay_inputs, const Tensors& grads,
                             const ops::ActionPlan& actions, ops::RecomputeObserver* observer) {
  RestoreGenerators random(generators);
  at::AutoGradMode enable(true);
  ops::RecomputeScope scope(ops::RecomputeScope::Mode::kReplay, actions, kept, consume, observer);
  Tensors outputs = shared->inner.run(block, replay_inputs);
  if (scope.calls() != kept.size() || outputs.size() != grads.size()) {
    fail(block,
         c10::str(scope.calls(), " operators and ", outputs.size(),
                  " outputs in the replay, recorded were ", kept.size(), " and ", grads.size()),
         "a block must do the same each time it runs");
  }
  Replay result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
    result.outputs.push_back(std::move(outputs[i]));
    result.grads.push_back(grads[i]);
  }
  return result;
}

torch::autograd::variable_list RecomputeNode::apply(torch::autograd::variable_list&& grads) {
  if (at::GradMode::is_enabled()) fail(block, "a recomputed block has no double backward");
  if (released) {
    fail(block, "the backward pass ran twice", "keep the graph in the first one");
  }
  const std::vector<WeightPtr> sinking = sinking_weights(block);
  torch::autograd::variable_list result = run_again(std::move(grads), sinking);
  if (!sinking.empty() && shared->options.on_gradients) shared->options.on_gradients(block);
  return result;
}

torch::autograd::variable_list RecomputeNode::run_again(torch::autograd::variable_list grads,
                                                        const std::vector<WeightPtr>& sinking) {
  // The weights stay for the replay and for the gradient pass.
  const std::shared_ptr<void> weights = shared->inner.hold(block);
  const LentLeaves lent(sinking);

  Tensors replay_inputs = unload();
  Wanted wanted = wants(replay_inputs);
  for (const WeightPtr& weight : lent.weights()) wanted.tensors.push_back(weight->state().leaf());

  std::optional<LiveBytes> held;
  if (costs) held.emplace(device_of(replay_inputs));
  ValueWatch watch;
  Replay again = replay(replay_inputs, grads, plan, costs ? &watch : nullptr);
  if (!consume) {
    for (const auto& [call, i] : sent_outputs) kept[call].tensors[i] = Tensor();
  }
  if (held) costs->whole_bytes = std::max(costs->whole_bytes, held->now());
  if (shared->is_new(block)) check_leaves(again.outputs, replay_inputs, wanted.tensors);

  torch::autograd::variable_list result(inputs.size() + params.size());
  if (again.outputs.empty() || wanted.tensors.empty()) return result;
  const bool searches = costs && !costs->knows_unread;
  const std::vector<size_t> unheld = searches ? watch.gone() : std::vector<size_t>();
  if (!searches) {
    replay_inputs.clear();
    grads.clear();
  }
  // The scopes are closed: a block inside this one replays in the pass below, and on its own.
  Tensors given = again.gradients(wanted.tensors);
  again = {};
  if (held) costs->working_bytes = std::max(costs->working_bytes, held->peak());
  if (searches) find_unread(unheld, replay_inputs, grads, wanted.tensors, given);

  const size_t own = wanted.edges.size();
  for (size_t i = 0; i < own; ++i) result[wanted.edges[i]] = std::move(given[i]);
  for (size_t i = own; i < given.size(); ++i) {
    if (given[i].defined()) lent.weights()[i - own]->state().sink()->add(given[i]);
    given[i].reset();
  }
  return result;
}

RecomputeNode::Wanted RecomputeNode::wants(Tensors& replay_inputs) {
  Wanted wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!replay_inputs[i].defined()) continue;
    replay_inputs[i] = replay_inputs[i].detach();
    if (!task_should_compute_output(i)) continue;
    wanted.tensors.push_back(replay_inputs[i].set_requires_grad(true));
    wanted.edges.push_back(i);
  }
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i]._version() != versions[i]) {
      fail(block, "a trained tensor was changed between the forward and the backward pass");
    }
    if (!task_should_compute_output(inputs.size() + i)) continue;
    wanted.tensors.push_back(params[i]);
    wanted.edges.push_back(inputs.size() + i);
  }
  return wanted;
}

void RecomputeNode::find_unread(const std::vector<size_t>& calls, const Tensors& replay_inputs,
                                const Tensors& grads, const Tensors& wanted,
                                const Tensors& gradients) {
  costs->knows_unread = true;
  std::vector<double> is_tried(kept.size());
  for (size_t call : calls) is_tried[call] = 1;
  is_tried = least_of_ranks(is_tried);
  for (size_t call = 0; call < is_tried.size(); ++call) {
    if (is_tried[call] == 1)
      costs->operators[call].is_unread = !reads(call, replay_inputs, grads, wanted, gradients);
  }
}

bool RecomputeNode::reads(size_t call, const Tensors& replay_inputs, const Tensors& grads,
                          const Tensors& wanted, const Tensors& gradients) {
  ops::ActionPlan trial(kept.size(), ops::Action::kRecompute);
  trial[call] = ops::Action::kSkip;
  ValueWatch watch(call);
  if (on_any_rank(are_touched(replay(replay_inputs, grads, trial, &watch).gradients(wanted),
                              gradients, Probe::kNaN)))
    return true;

  // A formula that compares may take NaN for any other value: large ones of both signs differ too.
  const Tensors outputs = watch.kept();
  const double large = outputs[0].scalar_type() == at::kHalf ? 3e4 : 1e38;
  const ops::KeptOutput nothing = kept[call];
  bool differs = false;
  for (double value : {large, -large}) {
    kept[call].tensors = outputs;
    kept[call].tensors[0] =
        at::full({}, value, outputs[0].options()).expand(outputs[0].sizes()).tensor_data();
    for (const Tensor& t : kept[call].tensors)
      kept[call].versions.push_back(t.defined() ? t._version() : 0);
    trial[call] = ops::Action::kKeep;
    differs |= are_touched(replay(replay_inputs, grads, trial, nullptr).gradients(wanted),
                           gradients, Probe::kLarge);
    kept[call] = nothing;
  }
  return on_any_rank(differs);
}

void RecomputeNode::check_leaves(const Tensors& outputs, const Tensors& replay_inputs,
                                 const Tensors& wanted) const {
  std::vector<Node*> todo;
  std::unordered_set<Node*> seen;
  auto visit = [&](Node* node) {
    if (seen.insert(node).second) todo.push_back(node);
  };
  for (const Tensor& output : outputs) visit(output.grad_fn().get());
  while (!todo.empty()) {
    Node* node = todo.back();
    todo.pop_back();
    if (node == nullptr) continue;
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      auto is_leaf = [&](const Tensor& t) { return t.is_same(leaf->variable); };
      const auto has_leaf = [&](const Tensors& known) {
        return std::any_of(known.begin(), known.end(), is_leaf);
      };
      if (!has_leaf(replay_inputs) && !has_leaf(params) && !has_leaf(wanted)) {
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
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const Tensor& t) {
    if (t.defined() && t.requires_grad() && seen.insert(t.unsafeGetTensorImpl()).second)
      result.push_back(t);
  };
  block.visit([&](nn::Module& module) {
    for (const WeightPtr& weight : module.weights()) add(weight->state().leaf());
    if (auto* linear = dynamic_cast<nn::Linear*>(&module)) {
      for (const ops::Adapter& adapter : linear->adapters) {
        if (adapter.scale == 0) continue;
        add(adapter.a);
        add(adapter.b);
      }
    }
  });
  return result;
}

std::vector<WeightPtr> sinking_weights(Block& block) {
  std::vector<WeightPtr> result;
  block.visit([&](nn::Module& module) {
    for (const WeightPtr& weight : module.weights()) {
      if (weight->state().sink() != nullptr) result.push_back(weight);
    }
  });
  return result;
}

RecomputeRunner::RecomputeRunner(BlockRunner& inner, Planner planner, RecomputeOptions options)
    : shared_(std::make_shared<RecomputeState>(inner, std::move(planner), std::move(options))) {}
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
  Tensors places;
  for (const Tensor& p : node->params) places.push_back(ops::LeafScope::place_of(p));
  node->set_next_edges(torch::autograd::collect_next_edges(inputs, places));
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
  if (shared_->options.offloader) node->load(inputs);
  for (Tensor& output : outputs) {
    // The output becomes a new tensor object: no input, no view, and none of the kept tensors.
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
