#include "host/plan/dry_model.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/error.h"
#include "atelier/host/device_graph.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/host/weight_state.h"
#include "atelier/nn/layers.h"

#include "host/plugins/guard.h"
#include "host/weights/weight_loading.h"
#include "memory/convolution_scratch.h"
#include "memory/graph_runner.h"
#include "memory/packed.h"

namespace atelier::plan {
namespace {

using at::Tensor;

at::TensorOptions meta(at::ScalarType dtype) {
  return at::TensorOptions(at::kMeta).dtype(dtype);
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors) {
    if (t.defined()) bytes += static_cast<int64_t>(t.nbytes());
  }
  return bytes;
}

// A weight without values.
class MetaStore final : public WeightStore {
 public:
  MetaStore(at::IntArrayRef sizes, at::ScalarType dtype, bool is_stored)
      : value_(at::empty(sizes, meta(dtype))), is_stored_(is_stored) {}

  // Each draw from 8-bit storage makes a tensor.
  Tensor draw() const override { return is_stored_ ? at::empty_like(value_) : value_; }
  Tensor draw_rows(const Tensor& index) const override {
    return at::empty({index.numel(), value_.size(1)}, value_.options());
  }
  // What is made of it once stays beside it, as convolutions' kernels do on the CPU.
  bool is_resident() const override { return !is_stored_; }

 private:
  Tensor value_;
  bool is_stored_;
};

}  // namespace

double Work::seconds(const memory::DeviceProfile& profile, at::ScalarType dtype) const {
  return product_flops / profile.product_flops(dtype) + attention_flops / profile.attention_flops +
         2.0 * static_cast<double>(written_bytes) / profile.memory_bytes_per_second;
}

Work Work::operator-(const Work& other) const {
  return {product_flops - other.product_flops, attention_flops - other.attention_flops,
          written_bytes - other.written_bytes};
}

void Work::repeat(double times) {
  product_flops *= times;
  attention_flops *= times;
  written_bytes = static_cast<int64_t>(static_cast<double>(written_bytes) * times);
}

Work& Work::operator+=(const Work& other) {
  product_flops += other.product_flops;
  attention_flops += other.attention_flops;
  written_bytes += other.written_bytes;
  return *this;
}

void DryPass::repeat(double times) {
  work.repeat(times);
  for (auto& [block, of_block] : blocks) {
    of_block.work.repeat(times);
    of_block.runs *= times;
  }
}

DryPass& DryPass::operator+=(const DryPass& other) {
  peak_bytes = std::max(peak_bytes, other.peak_bytes);
  work += other.work;
  for (const auto& [block, of_block] : other.blocks) {
    OfBlock& sum = blocks[block];
    sum.work += of_block.work;
    sum.runs += of_block.runs;
  }
  return *this;
}

class DryModel::CountingRunner final : public BlockRunner {
 public:
  explicit CountingRunner(DryModel& model) : model_(model) {}

  Tensors run(Block& block, const Tensors& inputs) override {
    const Work before = model_.work();
    Tensors outputs = graphs_.run(block, inputs);
    DryPass::OfBlock& sum = model_.lap_.blocks[&block];
    sum.work += model_.work() - before;
    ++sum.runs;
    return outputs;
  }

  memory::GraphRunner& graphs() { return graphs_; }

 private:
  DryModel& model_;
  DirectRunner direct_;
  memory::GraphRunner graphs_{direct_};
};

// Computes what a graph would, each time that it is replayed, beside the memory of all graphs: what
// the allocator took for the runs before they were recorded stays with it.
class DryModel::Recorder final : public ops::GraphRecorder {
 public:
  explicit Recorder(DryModel& model) : model_(model) {}
  at::Device device() const override { return at::kMeta; }
  std::unique_ptr<ops::DeviceGraph> record(const std::function<Tensors()>& work) override {
    return std::make_unique<Graph>(*this, work);
  }

 private:
  class Graph final : public ops::DeviceGraph {
   public:
    Graph(Recorder& recorder, std::function<Tensors()> work)
        : recorder_(recorder), work_(std::move(work)) {}
    const Tensors& replay() override {
      recorder_.outputs_.clear();
      recorder_.hold(recorder_.model_.peak_of([&] { recorder_.outputs_ = work_(); }));
      return recorder_.outputs_;
    }

   private:
    Recorder& recorder_;
    std::function<Tensors()> work_;
  };

  void hold(int64_t bytes) {
    if (bytes > held_.numel()) held_ = model_.tensor({bytes}, at::kByte);
  }

  DryModel& model_;
  Tensor held_ = model_.tensor({0}, at::kByte);  // what graphs compute with
  Tensors outputs_;                              // of the one that was replayed last
};

void DryModel::make_graphs(int64_t most_rows) {
  memory::GraphRunner& graphs = runner_->graphs();
  if (most_rows == 0) return graphs.end();
  graphs.begin(
      {.recorder = std::make_unique<Recorder>(*this), .most_rows = most_rows, .runs_first = false});
}

int64_t DryModel::peak_of(const std::function<void()>& call) {
  lap_.peak_bytes = std::max(lap_.peak_bytes, bytes_.peak() - weight_bytes_);
  bytes_.forget_peak();
  const int64_t before = bytes_.now();
  call();
  return bytes_.peak() - before;
}

DryModel::DryModel(model::LoadedModel& model, at::DeviceType like, bool counts_scratch)
    : model_(model),
      like_(like),
      run_(like, counts_scratch ? memory::convolution_scratch : ops::DryRun::Scratch()),
      runner_(std::make_unique<CountingRunner>(*this)) {
  place_weights();
  lap();
}

DryModel::~DryModel() {
  take_back();
}

void DryModel::place_weights() {
  for (const model::LoadedPart& part : model_.parts()) {
    const std::string& name = part.detection.component;
    const weights::WeightStorage storage = model_.weight_storage(name);
    const at::ScalarType dtype = model_.dtype(name);
    weights::outline_weights(model_.binding(name), part.checkpoint, dtype, storage);
    model_.model().component(name).visit_weights([&](const std::string&, Weight& weight) {
      const auto store = weight.state().store();
      const at::ScalarType drawn = weight.drawn_dtype(dtype);
      if (const auto* packed = dynamic_cast<const memory::PackedStore*>(store.get()))
        weight.state().set_store(
            std::make_shared<memory::PackedStore>(packed->value(), drawn, like_));
      else
        weight.state().set_store(
            std::make_shared<MetaStore>(weight.sizes(), drawn, storage.weights.contains(&weight)));
    });
  }
  weight_bytes_ = bytes_.now();
}

void DryModel::take_back() {
  model_.model().forget_levels();
  for (const auto& [linear, a] : adapted_) {
    std::erase_if(linear->adapters,
                  [&](const ops::Adapter& adapter) { return adapter.a.is_same(a); });
  }
  for (const model::LoadedPart& part : model_.parts()) {
    model_.model()
        .component(part.detection.component)
        .visit_weights([](const std::string&, Weight& weight) {
          weight.state().set_store(nullptr);
          weight.state().keep_derived({});
        });
  }
}

void DryModel::train(const parameters::Selection& selection, int64_t rank) {
  const int64_t before = bytes_.now();
  for (const parameters::Selection::TrainedWeight& trained : selection.weights) {
    const at::ScalarType dtype = trained.weight->drawn_dtype(model_.dtype(trained.component));
    trained.weight->set(at::empty(trained.weight->sizes(), meta(dtype)));
    trained.weight->state().set_trainable(true);
  }
  for (const parameters::Selection::AdaptedLayer& layer : selection.layers) {
    ops::Adapter adapter;
    adapter.a = at::empty({rank, layer.linear->in_features()}, meta(at::kFloat));
    adapter.b = at::empty({layer.linear->out_features(), rank}, meta(at::kFloat));
    adapter.a.set_requires_grad(true);
    adapter.b.set_requires_grad(true);
    adapted_.emplace_back(layer.linear, adapter.a);
    layer.linear->adapters.push_back(std::move(adapter));
  }
  weight_bytes_ += bytes_.now() - before;
}

at::Tensor DryModel::tensor(at::IntArrayRef sizes, at::ScalarType dtype) const {
  return at::empty(sizes, meta(dtype));
}

Work DryModel::work() const {
  return {run_.product_flops(), run_.attention_flops(), bytes_.written()};
}

void DryModel::guarded(const Call& call, BlockRunner& runner) const {
  plugins::guard(std::string(model_.family().name()) + " in a dry run", [&] { call(runner); });
}

BlockRunner& DryModel::runner() {
  return *runner_;
}

DryPass DryModel::lap() {
  DryPass pass = std::exchange(lap_, {});
  pass.peak_bytes = std::max(pass.peak_bytes, bytes_.peak() - weight_bytes_);
  pass.work += work() - lap_begin_;
  bytes_.forget_peak();
  lap_begin_ = work();
  return pass;
}

Tensor DryModel::once(const Function& run, const Tensor& in) {
  const auto [place, is_new] = known_.try_emplace(c10::str(in.sizes(), in.scalar_type()));
  Known& known = place->second;
  if (!is_new) {
    lap_ += known.pass;
    return tensor(known.sizes, known.dtype);
  }
  DryPass before = std::exchange(lap_, {});
  const Work work_before = work();
  const Tensor out = run(in);
  known = {.sizes = out.sizes().vec(), .dtype = out.scalar_type()};
  known.pass.work = work() - work_before;
  known.pass.blocks = lap_.blocks;
  lap_ += before;
  return out;
}

DryPass DryModel::measure(const Call& call) {
  lap();
  guarded(call, *runner_);
  return lap();
}

namespace {

// Remembers what each block was given, and which of that came from blocks before.
class RecordingRunner final : public BlockRunner {
 public:
  struct Run {
    Block* block;
    Tensors inputs, outputs;
  };
  std::vector<Run> runs;
  std::set<size_t> carried;  // places of inputs that are outputs of blocks

  Tensors run(Block& block, const Tensors& inputs) override {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined() && made_.contains(inputs[i].unsafeGetTensorImpl())) carried.insert(i);
    }
    Tensors outputs = block.forward(inputs);
    for (const Tensor& t : outputs) {
      if (t.defined()) made_.insert(t.unsafeGetTensorImpl());
    }
    runs.push_back({&block, inputs, outputs});
    return outputs;
  }

 private:
  std::set<const c10::TensorImpl*> made_;
};

// Gives what was recorded, for the work around blocks.
class ReplayingRunner final : public BlockRunner {
 public:
  explicit ReplayingRunner(std::vector<Tensors> outputs) : outputs_(std::move(outputs)) {}
  Tensors run(Block&, const Tensors&) override { return outputs_.at(next_++); }

 private:
  std::vector<Tensors> outputs_;
  size_t next_ = 0;
};

// Bytes and times of each operator of a block.
class OperatorMeter final : public ops::RecomputeObserver {
 public:
  OperatorMeter(const DryModel& model, const memory::DeviceProfile& profile,
                memory::BlockCosts& costs)
      : model_(model), profile_(profile), costs_(costs) {}

  void begin() override { before_ = model_.work(); }
  void end(std::string_view op, const Tensors& outputs) override {
    costs_.operators.push_back({std::string(op), bytes_of(outputs),
                                (model_.work() - before_).seconds(profile_, model_.dtype())});
  }

 private:
  const DryModel& model_;
  const memory::DeviceProfile& profile_;
  memory::BlockCosts& costs_;
  Work before_;
};

Tensors leaves_of(const RecordingRunner::Run& run, const std::set<size_t>& carried) {
  Tensors leaves;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    const Tensor& t = run.inputs[i];
    const bool is_trained = t.defined() && at::isFloatingType(t.scalar_type()) &&
                            (carried.empty() ? i == 0 : carried.contains(i));
    leaves.push_back(is_trained ? t.detach().requires_grad_() : t);
  }
  return leaves;
}

Tensors with_grad(const Tensors& tensors) {
  Tensors result;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(result),
               [](const Tensor& t) { return t.defined() && t.requires_grad(); });
  return result;
}

std::string shape_key(const RecordingRunner::Run& run, size_t trained) {
  std::string key(run.block->kind());
  for (const Tensor& t : run.inputs) {
    key += t.defined() ? c10::str(" ", t.scalar_type(), t.sizes()) : std::string(" -");
  }
  return key + c10::str(" ", trained);
}

struct KindCosts {
  std::shared_ptr<memory::BlockCosts> costs;
  double forward = 0.0, backward = 0.0;
};

// One block: its operators without a graph, then forward and backward with one.
KindCosts measure_block(const DryModel& model, memory::MetaBytes& bytes,
                        const RecordingRunner::Run& run, const std::set<size_t>& carried,
                        const memory::DeviceProfile& profile) {
  KindCosts kind{std::make_shared<memory::BlockCosts>()};
  memory::BlockCosts& costs = *kind.costs;
  costs.runs = 1;
  {
    const at::NoGradGuard no_grad;
    OperatorMeter meter(model, profile, costs);
    std::vector<ops::KeptOutput> kept;
    const ops::ActionPlan nothing;
    const ops::RecomputeScope scope(ops::RecomputeScope::Mode::kRecord, nothing, kept,
                                    /*consume=*/false, &meter);
    const Work before = model.work();
    const Tensors outputs = run.block->forward(run.inputs);
    kind.forward = costs.seconds = (model.work() - before).seconds(profile, model.dtype());
    costs.held_bytes = bytes_of(outputs);
  }
  const at::AutoGradMode enable(true);
  const Tensors leaves = leaves_of(run, carried);
  Tensors wanted = with_grad(leaves);
  for (const Tensor& t : memory::trained_tensors(*run.block)) wanted.push_back(t);
  bytes.forget_peak();
  const int64_t before = bytes.now();
  Tensors outputs = with_grad(run.block->forward(leaves));
  costs.whole_bytes = bytes.now() - before;
  Tensors grads;
  for (const Tensor& t : outputs) grads.push_back(at::empty_like(t));
  const int64_t given = bytes_of(grads);
  const Work work_before = model.work();
  const Tensors got = torch::autograd::grad(outputs, wanted, grads, /*retain_graph=*/false,
                                            /*create_graph=*/false, /*allow_unused=*/true);
  kind.backward = (model.work() - work_before).seconds(profile, model.dtype());
  costs.working_bytes = bytes.peak() - before - given;
  return kind;
}

}  // namespace

DryModel::TrainingPass DryModel::measure_training(const Call& call,
                                                  const memory::DeviceProfile& profile) {
  RecordingRunner recorded;
  {
    const at::NoGradGuard no_grad;
    guarded(call, recorded);
  }
  TrainingPass pass;
  std::map<std::string, KindCosts> kinds;
  std::vector<Tensors> outputs;
  for (const RecordingRunner::Run& run : recorded.runs) {
    const Tensors leaves = memory::trained_tensors(*run.block);
    const size_t trained = leaves.size();
    KindCosts& kind = kinds[shape_key(run, trained)];
    if (!kind.costs) kind = measure_block(*this, bytes_, run, recorded.carried, profile);
    pass.runs.push_back(kind.costs);
    pass.blocks.push_back(run.block);
    pass.gradients.push_back(bytes_of(leaves));
    pass.forward.push_back(kind.forward);
    pass.backward.push_back(kind.backward);
    Tensors& given = outputs.emplace_back();
    for (const Tensor& t : run.outputs) given.push_back(t.detach().requires_grad_());
  }
  recorded.runs.clear();
  const int64_t held = bytes_.now();
  const Work before = work();
  bytes_.forget_peak();
  ReplayingRunner replayed(outputs);
  {
    const at::AutoGradMode enable(true);
    guarded(call, replayed);
  }
  pass.outside_bytes = bytes_.peak() - held;
  pass.outside_seconds = (work() - before).seconds(profile, dtype());
  return pass;
}

}  // namespace atelier::plan
