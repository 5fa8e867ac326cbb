// A model on meta tensors: what a run would hold and compute, found by running it without values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atelier/block.h"
#include "atelier/host/dry_run.h"

#include "host/model/model_loader.h"
#include "host/parameters/selection.h"
#include "memory/device_profile.h"
#include "memory/meta_bytes.h"
#include "memory/recompute.h"

namespace atelier::plan {

// What a piece of work computes and writes.
struct Work {
  double product_flops = 0.0, attention_flops = 0.0;
  int64_t written_bytes = 0;  // each of them is read once, too

  double seconds(const memory::DeviceProfile& profile, at::ScalarType dtype) const;
  Work operator-(const Work& other) const;
  Work& operator+=(const Work& other);
  void repeat(double times);
};

// A part of a run.
struct DryPass {
  struct OfBlock {
    Work work;
    double runs = 0.0;
  };
  int64_t peak_bytes = 0;  // beside weights
  Work work;               // all of it, that of blocks too
  std::map<const Block*, OfBlock> blocks;
  // Multiplies the work, as if the call were made `times` times.
  void repeat(double times);
  // With another one behind it.
  DryPass& operator+=(const DryPass& other);
};

// While one lives, the weights of a model are meta tensors and LibTorch's meta tensors are counted.
// Not thread-safe; the model's components are not loaded, and afterwards they are not either.
class DryModel {
 public:
  // `like` is the kind of device that the run will be on. `counts_scratch`: what convolutions work
  // in on the CPU is counted, too; finding that takes a moment.
  DryModel(model::LoadedModel& model, at::DeviceType like, bool counts_scratch = true);
  ~DryModel();
  DryModel(const DryModel&) = delete;
  DryModel& operator=(const DryModel&) = delete;

  Model& model() const { return model_.model(); }
  at::ScalarType dtype() const { return model_.dtype(); }
  at::ScalarType dtype(std::string_view component) const { return model_.dtype(component); }
  at::DeviceType like() const { return like_; }

  // Makes what a run trains leaves, and puts LoRA factors of `rank` into its layers.
  void train(const parameters::Selection& selection, int64_t rank);

  // A meta tensor.
  at::Tensor tensor(at::IntArrayRef sizes, at::ScalarType dtype) const;

  // Runs blocks in place, and counts them.
  BlockRunner& runner();
  // From now on it does so as memory::GraphRunner does, with the memory that this takes, for blocks
  // of so many rows; 0: no longer.
  void make_graphs(int64_t most_rows);
  // What was done since the last lap. Memory that it left behind counts in those that follow as
  // long as it is held.
  DryPass lap();
  // `run` on `in`; on inputs of one size the first time only, and counted each time.
  using Function = std::function<at::Tensor(const at::Tensor& in)>;
  at::Tensor once(const Function& run, const at::Tensor& in);

  // A lap of `call` alone.
  using Call = std::function<void(BlockRunner& runner)>;
  DryPass measure(const Call& call);

  // What the blocks of a training step cost, in the order in which `call` runs them, and what is
  // held outside of them: `call` makes a forward and a backward pass.
  struct TrainingPass {
    std::vector<std::shared_ptr<const memory::BlockCosts>> runs;
    std::vector<Block*> blocks;
    std::vector<double> forward, backward;  // seconds of each; backward without recomputing
    std::vector<int64_t> gradients;         // bytes of what each block trains
    double outside_seconds = 0.0;
    int64_t outside_bytes = 0;
  };
  TrainingPass measure_training(const Call& call, const memory::DeviceProfile& profile);

  Work work() const;

 private:
  class CountingRunner;
  class Recorder;
  struct Known {
    std::vector<int64_t> sizes;
    at::ScalarType dtype = at::kFloat;
    DryPass pass = {};
  };
  // Calls the plugin.
  void guarded(const Call& call, BlockRunner& runner) const;
  // What `call` holds at once. The peak of the lap counts it, too.
  int64_t peak_of(const std::function<void()>& call);
  void place_weights();
  void take_back();

  model::LoadedModel& model_;
  at::DeviceType like_;
  ops::DryRun run_;
  memory::MetaBytes bytes_;
  std::vector<std::pair<nn::Linear*, at::Tensor>> adapted_;  // layers, and the factor put there
  int64_t weight_bytes_ = 0;                                 // of meta tensors that are weights
  std::unique_ptr<CountingRunner> runner_;
  DryPass lap_;                         // blocks, and the work of what once() left out
  Work lap_begin_;                      // what had been done
  std::map<std::string, Known> known_;  // by input, of once()
};

}  // namespace atelier::plan
