// Trained weights of blocks that are divided among the processes of a run (stage 3 of ZeRO).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "host/distributed/shards.h"
#include "host/model/model_loader.h"
#include "host/optim/optimizer.h"
#include "host/parameters/gradient_sums.h"
#include "host/parameters/selection.h"

namespace atelier::parameters {

// Whether each process has a part of the weight, and the whole of it only while its block runs.
bool is_divided(const model::LoadedModel& model, const Selection::TrainedWeight& trained);

// Weights are trained where parts of their blocks rest, or in copies of these in host memory. What
// was moved comes with the next gather. Not thread-safe.
class DividedWeights {
 public:
  // `rank`: of the `size` processes that have a part. `on_host`: where the optimizer works. `model`
  // outlives this.
  DividedWeights(model::LoadedModel& model, int rank, int size, bool on_host);
  ~DividedWeights();
  DividedWeights(const DividedWeights&) = delete;
  DividedWeights& operator=(const DividedWeights&) = delete;

  // Returns what stands for the whole weight: shape and dtype alone.
  optim::Parameter add(const Selection::TrainedWeight& trained, const Block& block);
  // Whether it was added here.
  bool has(const std::string& name) const { return places_.contains(name); }
  // Lets the optimizer move this process's part.
  void cut(optim::Parameter& parameter) const;
  std::string note() const;

  // What parts have of the weights, in the order of their sums.
  const std::vector<distributed::FlatLayout::Cut>& cuts() const { return cuts_; }
  const std::vector<std::string>& names() const { return names_; }  // of these
  // Gradients go to `sums` from now on, which outlives this.
  void send_gradients(GradientSums& sums);
  // Gives each part its sum.
  void take_gradients(const GradientSums& sums);
  // Blocks come as they were moved the next time that they come.
  void publish();

 private:
  struct Divided {
    Weight* weight;
    at::Tensor resting;  // this process's numbers, flat
    at::Tensor moved;    // the same, or a copy in host memory
    int64_t begin;       // in the weight
  };

  model::LoadedModel& model_;
  const bool on_host_;
  const int rank_, size_;
  std::map<const Block*, memory::Residency*> trained_blocks_;
  std::vector<Divided> divided_;
  std::vector<distributed::FlatLayout::Cut> cuts_;  // as divided_
  std::vector<std::string> names_;                  // as divided_
  std::map<std::string, size_t> places_;            // of parameters, by name
};

}  // namespace atelier::parameters
