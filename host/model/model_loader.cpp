#include "host/model/model_loader.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include "atelier/error.h"
#include "atelier/host/stop.h"
#include "atelier/host/weight_state.h"

#include "formats/escape.h"
#include "host/device/cpu_memory.h"
#include "host/model/component_filler.h"
#include "host/model/components.h"
#include "host/model/fingerprint.h"
#include "host/model/graphs.h"
#include "host/model/handover.h"
#include "host/model/random_weights.h"
#include "host/model/request_checks.h"
#include "host/plugins/guard.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "host/weights/weight_loading.h"
#include "memory/activation_budget.h"
#include "memory/clock.h"
#include "memory/slab.h"

namespace atelier::model {

namespace {

// Adds up the statistics of residencies that one component had one after the other.
void add_stats(memory::Residency::Stats& total, const memory::Residency::Stats& stats) {
  total.device_bytes = std::max(total.device_bytes, stats.device_bytes);
  total.host_bytes = std::max(total.host_bytes, stats.host_bytes);
  total.shared_bytes = std::max(total.shared_bytes, stats.shared_bytes);
  total.copied_bytes += stats.copied_bytes;
  total.copies += stats.copies;
  total.late += stats.late;
  total.waited_seconds += stats.waited_seconds;
}

std::string describe(const memory::ResidencyPlan& plan, const memory::Residency::Stats& stats) {
  const auto stay = std::count(plan.blocks.begin(), plan.blocks.end(), memory::Place::kDevice) +
                    std::count(plan.stays.begin(), plan.stays.end(), true);
  const std::string blocks = std::to_string(plan.blocks.size()) + " blocks ";
  std::string text =
      (plan.shards > 1
           ? blocks + "are divided among " + std::to_string(plan.shards) + " processes, "
           : std::to_string(stay) + " of " + blocks + "stayed on the device, which ") +
      (plan.shards > 1 ? "of which the device of this one held " : "held ") +
      report::bytes_text(stats.device_bytes) + "; the host held " +
      report::bytes_text(stats.host_bytes) +
      (stats.shared_bytes > 0 ? ", of which the processes of the machine have " +
                                    report::bytes_text(stats.shared_bytes) + " together"
                              : "") +
      "; " + report::bytes_text(stats.copied_bytes) + " came in " + std::to_string(stats.copies) +
      " copies, " + std::to_string(stats.late) + " of them late";
  if (stats.waited_seconds > 0) {
    char waited[40];
    std::snprintf(waited, sizeof waited, ", %.2f s were waited", stats.waited_seconds);
    text += waited;
  }
  return text;
}

}  // namespace

namespace {

int64_t bytes_where_it_rests(const Weight& weight) {
  int64_t bytes = 0;
  for (const at::Tensor& part : weight.state().store()->parts())
    bytes += static_cast<int64_t>(part.nbytes());
  return bytes;
}

// The bytes of the slots that a component of this plan takes, whose blocks are on the host.
int64_t slot_bytes(const std::vector<Block*>& blocks, const memory::ResidencyPlan& plan,
                   const std::set<const Weight*>& on_demand) {
  int64_t count = 0, largest = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (plan.blocks[i] == memory::Place::kDevice) continue;
    memory::SlabLayout layout;
    blocks[i]->visit_weights([&](const std::string&, Weight& weight) {
      if (on_demand.contains(&weight)) return;
      for (const at::Tensor& part : weight.state().store()->parts()) layout.add(part);
    });
    largest = std::max(largest, layout.bytes());
    ++count;
  }
  return std::min(count, plan.prefetch + 1) * largest;
}

// A runner of LoadedModel, as hand_over() and graphs_of() know it.
class HandoverRunner : public BlockRunner {
 public:
  virtual void hand_over(std::string_view from, std::string_view to) = 0;
  virtual memory::GraphRunner& graphs() = 0;
};

}  // namespace

// Passes blocks on to whatever streams at the moment.
class LoadedModel::Runner final : public HandoverRunner {
 public:
  explicit Runner(LoadedModel& model) : model_(model) {}

  Tensors run(Block& block, const Tensors& inputs) override {
    ops::check_stop();
    Tensors outputs = graphs_.run(block, inputs);
    if (leaving_.contains(&block)) retire(block);
    return outputs;
  }
  std::shared_ptr<void> hold(Block& block) override { return now().hold(block); }

  void stream(std::vector<memory::Residency*> components) {
    streaming_.reset();
    if (!components.empty()) streaming_.emplace(direct_, std::move(components));
  }

  memory::GraphRunner& graphs() override { return graphs_; }

  void hand_over(std::string_view from, std::string_view to) override {
    if (model_.is_loaded(to) || !model_.is_loaded(from) || !model_.is_streamed(to)) return;
    if (model_.is_divided(to)) return;
    if (!load_host_part(to)) return;
    coming_ = to;
    room_ = 0;
    needed_ = slot_bytes(model_.model_->blocks(to), model_.plans_.find(to)->second, on_demand(to));
    for (Block* block : model_.model_->blocks(from)) leaving_.insert(block);
  }

  // The weights of a component leave, or all of them have come.
  void forget(std::string_view component) {
    leaving_.clear();
    if (component != coming_) return;
    coming_.clear();
    held_.clear();
    filler_.reset();
  }

  // Whether weights of it were brought by hand_over().
  bool is_coming(std::string_view component) const { return component == coming_; }

  // `filler`: of blocks that are not loaded yet.
  void make_residency(std::string_view name, ComponentFiller& filler,
                      const files::Checkpoint& checkpoint) {
    memory::ResidencyPlan plan = model_.plans_.find(name)->second;
    if (plan.shards > 1) plan.peers = model_.peers_;
    plan.shared = model_.slab_sharing(name, checkpoint);
    const bool is_divided = plan.shards > 1;
    memory::BlockLoading loading = filler.loading();
    const auto change = model_.changes_.find(name);
    if (is_divided && change != model_.changes_.end())
      loading.load = [load = std::move(loading.load), &then = change->second](Block& block) {
        load(block);
        then(block);
      };
    model_.residencies_[std::string(name)] = std::make_unique<memory::Residency>(
        model_.model_->blocks(name), std::move(plan), *model_.transfer_,
        is_divided ? std::set<const Weight*>() : on_demand(name), loading);
    device::release_freed_memory();
    model_.stream_residencies();
  }

 private:
  BlockRunner& now() {
    if (streaming_) return *streaming_;
    return direct_;
  }

  // Whatever streams at the moment, as one that stays.
  class Placed final : public BlockRunner {
   public:
    explicit Placed(Runner& runner) : runner_(runner) {}
    Tensors run(Block& block, const Tensors& inputs) override {
      return runner_.now().run(block, inputs);
    }
    std::shared_ptr<void> hold(Block& block) override { return runner_.now().hold(block); }

   private:
    Runner& runner_;
  };

  // Weights that do not come with their block.
  std::set<const Weight*> on_demand(std::string_view name) const {
    std::set<const Weight*> weights;
    if (!model_.prepares_levels_) return weights;
    for (const WeightPtr& weight : model_.model_->level_weights(name)) weights.insert(weight.get());
    return weights;
  }

  // What a component has on the host comes there; false: it has no room for it.
  bool load_host_part(std::string_view name) {
    const files::Checkpoint& checkpoint = model_.find_part(name)->checkpoint;
    const std::set<const Weight*> later = model_.filled_by_block(name, checkpoint);
    PlaceByWeight places = model_.places_;
    for (const Weight* weight : on_demand(name)) places.emplace(weight, memory::Place::kHost);
    weights::WeightBinding ahead = model_.bindings_.find(name)->second;
    std::erase_if(ahead.weights, [&](const auto& bound) { return !places.contains(bound.weight); });
    weights::WeightBinding copied = ahead;
    std::erase_if(copied.weights, [&](const auto& bound) {
      return places.at(bound.weight) == memory::Place::kDisk;
    });
    if (weights::bytes_to_read(copied, checkpoint) > memory::available_bytes(at::kCPU))
      return false;
    std::erase_if(ahead.weights, [&](const auto& bound) { return later.contains(bound.weight); });
    const auto on_bytes = [](int64_t) { ops::check_stop(); };
    fill_weights(model_, name, ahead, checkpoint, places, on_bytes);
    filler_.emplace(model_, name, model_.bindings_.find(name)->second, checkpoint, model_.places_,
                    on_bytes);
    hold_shared(name, checkpoint);
    return true;
  }

  // The blocks that the processes of the machine have together are there from now on.
  void hold_shared(std::string_view name, const files::Checkpoint& checkpoint) {
    memory::ResidencyPlan plan = model_.plans_.find(name)->second;
    plan.shared = model_.slab_sharing(name, checkpoint);
    held_ = memory::bring_shared(plan.shared_of(model_.model_->blocks(name)), on_demand(name),
                                 plan.shared, filler_->loading());
  }

  // Behind the last run of a block.
  void retire(Block& block) {
    block.visit_weights([&](const std::string&, Weight& weight) {
      if (model_.is_streamed(weight) || !weight.is_loaded()) return;
      room_ += bytes_where_it_rests(weight);
      weight.state().set_store(nullptr);
      weight.state().keep_derived({});
    });
    if (room_ < needed_) return;
    leaving_.clear();
    try {
      make_residency(coming_, *filler_, model_.find_part(coming_)->checkpoint);
    } catch (...) {  // what left may lie in pieces: then they come when all of it has left
      if (!plugins::out_of_memory()) throw;
    }
  }

  LoadedModel& model_;
  DirectRunner direct_;
  std::optional<memory::StreamingRunner> streaming_;
  Placed placed_{*this};
  memory::GraphRunner graphs_{placed_};

  std::set<const Block*> leaving_;  // of the denoiser that runs for the last time
  std::string coming_;              // the one that comes in its place; empty: none
  int64_t room_ = 0, needed_ = 0;   // bytes that have left, and those that the first blocks take
  std::optional<ComponentFiller> filler_;
  std::vector<memory::SharedBlock> held_;  // of its blocks
};

void hand_over(LoadedModel& model, std::string_view from, std::string_view to) {
  dynamic_cast<HandoverRunner&>(model.runner()).hand_over(from, to);
}

memory::GraphRunner& graphs_of(LoadedModel& model) {
  return dynamic_cast<HandoverRunner&>(model.runner()).graphs();
}

LoadedModel::LoadedModel(const ModelFamily& family)
    : family_(family), runner_(std::make_unique<Runner>(*this)) {}

LoadedModel::~LoadedModel() = default;

at::ScalarType LoadedModel::dtype() const {
  const RangedDenoiser* denoiser = stages_.first();
  return denoiser == nullptr ? dtype_ : dtype(denoiser->name());
}

at::ScalarType LoadedModel::dtype(std::string_view component) const {
  const auto named = dtypes_.find(component);
  return named == dtypes_.end() ? dtype_ : named->second;
}

at::ScalarType LoadedModel::decoder_dtype() const {
  for (const ComponentSpec& spec : family_.components())
    if (spec.role == Role::kVae && find_part(spec.name) != nullptr) return dtype(spec.name);
  return dtype_;
}

PlacedComponents LoadedModel::placed_components() {
  PlacedComponents components;
  components.known = component_names(family_);
  for (const std::string& name : components.known) {
    const Role role = find_component(family_, name)->role;
    if (role == Role::kTokenizer) components.blocks[name] = 0;
    if (find_part(name) != nullptr) components.blocks[name] = std::ssize(model_->blocks(name));
    if (role == Role::kDenoiser) components.denoisers.push_back(name);
    if (role == Role::kControl) components.controls.push_back(name);
  }
  return components;
}

// Decides where the weights of blocks rest. Reads no values.
void LoadedModel::place_blocks() {
  bool holds_on_host = false;
  for (auto& [name, plan] : plans_) {
    const std::vector<Block*> blocks = model_->blocks(name);
    if (plan.shards > 1) {
      // Each is read when its part is taken, and no more of a file than that.
      for (Block* block : blocks) {
        for (const Weight* weight : weights_of(*block)) places_[weight] = memory::Place::kDisk;
      }
      continue;
    }
    const int64_t moved = keep_on_host_what_no_file_has(plan, blocks, bindings_.find(name)->second,
                                                        find_part(name)->checkpoint, dtype(name),
                                                        weight_storage(name));
    if (moved > 0)
      notes_.push_back("--offload " + name + "=disk: " + std::to_string(moved) + " of " +
                       std::to_string(blocks.size()) +
                       " blocks rest in host memory: not all of their weights lie in the files as "
                       "they are computed with (--dtype, --storage)");
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (plan.blocks[i] == memory::Place::kDevice) continue;
      holds_on_host |= plan.blocks[i] == memory::Place::kHost;
      for (const Weight* weight : weights_of(*blocks[i])) places_[weight] = plan.blocks[i];
    }
  }
  if (holds_on_host && device_.is_cpu() && !is_simulated())
    notes_.push_back(
        "--offload to host memory saves nothing on the CPU, where everything is in host memory");
}

void LoadedModel::rearrange(const WeightLayout& layout) {
  report::Problems problems;
  check_storage(family_, layout.storage, *model_, parts_, problems);
  auto plans = residency_of(layout.placement, placed_components(),
                            !is_simulated() && device_.is_cpu(), problems);
  problems.throw_if_any();
  plans_ = std::move(plans);
  for (const auto& [component, storage] : layout.storage) storage_[component] = storage;
  places_.clear();
  notes_.clear();
  place_blocks();
  if (transfer_ == nullptr && !plans_.empty()) transfer_ = memory::make_transfer_device(device_);
}

BlockRunner& LoadedModel::runner() {
  return *runner_;
}

void LoadedModel::keep_on_device(const std::set<const Weight*>& weights) {
  for (auto& [name, plan] : plans_) {
    if (plan.shards > 1) continue;
    const std::vector<Block*> blocks = model_->blocks(name);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::set<const Weight*> own = weights_of(*blocks[i]);
      const bool stays = std::any_of(
          own.begin(), own.end(), [&](const Weight* weight) { return weights.contains(weight); });
      if (!stays) continue;
      plan.blocks[i] = memory::Place::kDevice;
      for (const Weight* weight : own) places_.erase(weight);
    }
  }
}

bool LoadedModel::is_streamed(std::string_view component) const {
  const auto plan = plans_.find(component);
  if (plan == plans_.end()) return false;
  if (plan->second.shards > 1) return true;
  const auto& blocks = plan->second.blocks;
  return std::any_of(blocks.begin(), blocks.end(),
                     [](memory::Place place) { return place != memory::Place::kDevice; });
}

bool LoadedModel::is_divided(std::string_view component) const {
  const auto plan = plans_.find(component);
  return plan != plans_.end() && plan->second.shards > 1;
}

void LoadedModel::share_host(std::shared_ptr<memory::SharedSlabs> slabs,
                             std::set<std::string, std::less<>> own) {
  slabs_ = std::move(slabs);
  unshared_ = std::move(own);
}

memory::Residency* LoadedModel::residency(std::string_view component) {
  const auto found = residencies_.find(component);
  return found == residencies_.end() ? nullptr : found->second.get();
}

weights::Storage LoadedModel::storage(std::string_view component) const {
  const auto found = storage_.find(component);
  const bool is_plain = found == storage_.end() || found->second == weights::Storage::kBf16;
  return is_plain ? weights::Storage::kPlain : found->second;
}

weights::Compute LoadedModel::compute(std::string_view component) const {
  const auto found = compute_.find(component);
  return found == compute_.end() ? weights::Compute::kPlain : found->second;
}

weights::WeightStorage LoadedModel::weight_storage(std::string_view component) {
  return weight_storage(component, storage(component));
}

weights::WeightStorage LoadedModel::weight_storage(std::string_view component,
                                                   weights::Storage storage) {
  if (storage == weights::Storage::kPlain) return {};
  weights::WeightStorage resting = {.storage = storage,
                                    .weights = weights::storable_weights(*model_, component)};
  leave_plain(component, resting.weights);
  if (compute(component) == weights::Compute::kW8A8)
    resting.w8a8 = weights::w8a8_weights(*model_, component);
  return resting;
}

void LoadedModel::leave_plain(std::string_view component, std::set<const Weight*>& stored) const {
  const auto option = quant_options_.find(component);
  if (option == quant_options_.end() || option->second.plain_layers.empty()) return;
  const size_t prefix = find_part(component)->detection.prefix.size();
  for (const weights::BoundWeight& bound : binding(component).weights) {
    const bool stays = std::ranges::any_of(bound.slices, [&](const weights::WeightSlice& slice) {
      const std::string_view tensor = std::string_view(slice.tensor).substr(prefix);
      return option->second.leaves_plain(tensor.substr(0, tensor.rfind('.')));
    });
    if (stays) stored.erase(bound.weight);
  }
}

const LoadedPart* LoadedModel::find_part(std::string_view component) const {
  for (const LoadedPart& part : parts_) {
    if (part.detection.component == component) return &part;
  }
  return nullptr;
}

void LoadedModel::load_component(std::string_view name, const LoadProgressCallback& progress) {
  const LoadedPart* part = find_part(name);
  if (part == nullptr)
    throw Error(ErrorCode::kNotFound,
                "component " + formats::quote_and_escape(name) + " was not given",
                "pass its files with --model_paths or --model_id_with_origin_paths");
  if (is_loaded(name)) return;
  load_component_from(name, bindings_.find(name)->second, part->checkpoint, progress);
}

void LoadedModel::load_component_from(std::string_view name, const weights::WeightBinding& binding,
                                      const files::Checkpoint& checkpoint,
                                      const LoadProgressCallback& progress) {
  if (is_loaded(name)) unload_component(name);
  const double start = memory::seconds_now();
  LoadProgress state;
  state.component = name;
  state.bytes_total = weights::bytes_to_read(binding, checkpoint);
  const auto report = [&](bool done) {
    state.done = done;
    state.seconds = memory::seconds_now() - start;
    if (progress) progress(state);
  };
  try {
    plugins::guard("loading " + std::string(name), [&] {
      fill(name, binding, checkpoint, [&](int64_t bytes) {
        ops::check_stop();
        state.bytes_done = bytes;
        report(/*done=*/false);
      });
    });
  } catch (const Error& error) {
    unload_component(name);
    if (error.code() != ErrorCode::kOutOfMemory || transfer_ == nullptr || is_streamed(name)) throw;
    throw Error(
        error.code(), error.message(),
        "let blocks rest elsewhere, for instance with --offload " + std::string(name) + "=host",
        error.tag());
  } catch (...) {
    unload_component(name);
    throw;
  }
  report(/*done=*/true);
  loaded_[std::string(name)] = true;
  for (const auto& held : listeners_) {
    if (const auto listener = held.lock()) (*listener)(name);
  }
}

// First what does not come block by block.
void LoadedModel::fill(std::string_view name, const weights::WeightBinding& binding,
                       const files::Checkpoint& checkpoint,
                       const std::function<void(int64_t)>& progress) {
  const std::set<const Weight*> later = filled_by_block(name, checkpoint);
  const bool is_coming = runner_->is_coming(name);
  ComponentFiller filler(*this, name, binding, checkpoint, places_, progress);
  filler.fill([&](const Weight* weight) {
    return !later.contains(weight) && !(is_coming && weight->is_loaded());
  });
  if (is_streamed(name) && residency(name) == nullptr)
    runner_->make_residency(name, filler, checkpoint);
  runner_->forget(name);
}

// Weights of blocks that are divided or shared, of which a process has no whole beside that.
std::set<const Weight*> LoadedModel::filled_by_block(std::string_view name,
                                                     const files::Checkpoint& checkpoint) {
  std::set<const Weight*> all;
  const auto plan = plans_.find(name);
  const bool is_shared = slab_sharing(name, checkpoint).slabs != nullptr;
  if (plan == plans_.end() || (!is_shared && plan->second.shards == 1)) return all;
  const std::vector<Block*> blocks = model_->blocks(name);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (plan->second.shards > 1 || plan->second.blocks[i] == memory::Place::kHost)
      all.merge(weights_of(*blocks[i]));
  }
  return all;
}

memory::SlabSharing LoadedModel::slab_sharing(std::string_view name,
                                              const files::Checkpoint& checkpoint) {
  if (slabs_ == nullptr || unshared_.contains(name) || is_divided(name) || !is_streamed(name) ||
      random_weights_seed(checkpoint))
    return {};
  return {.slabs = slabs_,
          .name = c10::str(fingerprint(find_part(name)->detection, checkpoint), " ", dtype(name),
                           " ", weights::storage_name(storage(name)), " ",
                           weights::compute_name(compute(name)))};
}

std::shared_ptr<const LoadedModel::Listener> LoadedModel::on_loaded(Listener listener) {
  std::erase_if(listeners_, [](const auto& held) { return held.expired(); });
  auto shared = std::make_shared<const Listener>(std::move(listener));
  listeners_.push_back(shared);
  return shared;
}

void LoadedModel::unload_component(std::string_view name) {
  const auto binding = bindings_.find(name);
  if (binding == bindings_.end()) return;
  runner_->forget(name);
  drop_residency(name);
  for (const weights::BoundWeight& bound : binding->second.weights) {
    bound.weight->state().set_store(nullptr);
    bound.weight->state().keep_derived({});
  }
  loaded_[std::string(name)] = false;
  device::release_freed_memory();
  // The next component finds whole pieces of what this one leaves.
  if (!device_.is_cpu()) at::accelerator::emptyCache();
}

void LoadedModel::drop_residency(std::string_view name) {
  const auto found = residencies_.find(name);
  if (found == residencies_.end()) return;
  const memory::Residency::Stats stats = found->second->stats();
  add_stats(past_[std::string(name)], stats);
  residencies_.erase(found);
  stream_residencies();
}

void LoadedModel::stream_residencies() {
  std::vector<memory::Residency*> all;
  for (const auto& [component, residency] : residencies_) all.push_back(residency.get());
  runner_->stream(std::move(all));
}

std::vector<std::string> LoadedModel::streaming_report() const {
  std::vector<std::string> lines;
  for (const auto& [name, plan] : plans_) {
    memory::Residency::Stats stats;
    if (const auto past = past_.find(name); past != past_.end()) stats = past->second;
    if (const auto now = residencies_.find(name); now != residencies_.end())
      add_stats(stats, now->second->stats());
    if (stats.copies > 0) lines.push_back(name + ": " + describe(plan, stats));
  }
  if (!is_simulated()) return lines;
  const memory::TransferDevice::Stats stats = transfer_->stats();
  lines.push_back("simulated device: at most " + report::bytes_text(stats.peak_bytes) +
                  (stats.capacity == INT64_MAX ? "" : " of " + report::bytes_text(stats.capacity)) +
                  " were in use");
  return lines;
}

bool LoadedModel::is_loaded(std::string_view name) const {
  const auto it = loaded_.find(name);
  return it != loaded_.end() && it->second;
}

void load_shown(LoadedModel& model, std::string_view component, progress::Progress& progress,
                const std::function<void()>& on_bytes) {
  progress::Step step(progress, "load " + std::string(component), 0, progress::Unit::kBytes);
  model.load_component(component, [&](const LoadProgress& state) {
    step.set(state.bytes_done, state.bytes_total);
    if (on_bytes) on_bytes();
  });
  step.finish();
}

}  // namespace atelier::model
