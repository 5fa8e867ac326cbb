// The tensors that a run trains: leaves in the model, and the files they are saved as.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "atelier/conditioning.h"

#include "host/lora/lora_writer.h"
#include "host/model/model_loader.h"
#include "host/optim/optimizer.h"
#include "host/order/training.h"
#include "host/parameters/parameter_placement.h"
#include "host/parameters/selection.h"
#include "host/report/problems.h"

namespace atelier::parameters {

// Whether the LoRA file that training begins with is one of the selected layers; reads headers
// only. Mistakes become problems. Throws what LoraFile::open and Targets::match throw.
void check_lora_checkpoint(model::LoadedModel& model, const Selection& selection,
                           const order::LoraSettings& settings, report::Problems& problems);

// What the optimizer moves, in its order: weights, and factors A and B of LoRA layers, which share
// a decay. There is no group of none.
std::vector<optim::Group> optimizer_groups(const order::Training& config,
                                           std::vector<optim::Parameter> weights,
                                           std::vector<optim::Parameter> a,
                                           std::vector<optim::Parameter> b);

// One file of what is trained of one component.
struct WeightFile {
  std::string component;
  bool is_lora;
  std::string path;
};
// What weights of `selection` are saved as: "STEM.safetensors"; of several parts, one file each:
// "STEM.lora.safetensors", "STEM.text_encoder.safetensors"; and LoRAs of several components as
// "STEM.lora.dit.safetensors".
std::vector<WeightFile> weight_files(const Selection& selection, const std::string& stem);

// Makes the selected weights leaves of the autograd graph and puts LoRA factors into the selected
// layers; taken out again by the destructor. Not thread-safe.
class TrainedTensors {
 public:
  // Every component of `selection` is loaded. LoRA factors are float32: A uniform in
  // +-1/sqrt(in), B zero, or those of config.lora.checkpoint, see check_lora_checkpoint(). `model`
  // outlives this. `group`: see ParameterPlacement.
  TrainedTensors(model::LoadedModel& model, Selection selection, const order::Training& config,
                 const Layout& layout, distributed::Group* group = nullptr);
  ~TrainedTensors();
  TrainedTensors(const TrainedTensors&) = delete;
  TrainedTensors& operator=(const TrainedTensors&) = delete;

  const Selection& selection() const { return selection_; }
  // All that is trained, whole: see ParameterPlacement::has_wholes().
  const std::vector<optim::Group>& groups() const { return placement_->wholes(); }
  // What the optimizer of this process moves: the same, or shards of it. It lives where placement()
  // says; after it was written, the model computes with it from placement().publish() on.
  const std::vector<optim::Group>& moved() const { return placement_->moved(); }
  ParameterPlacement& placement() { return *placement_; }
  const ParameterPlacement& placement() const { return *placement_; }
  int64_t count() const;  // of numbers

  // LoRA dropout works while training only.
  void set_training(bool is_training);

  // What this process has of what is trained: all of it, or the shards of it that it moves where
  // no process has more. By parameter name, in the dtype that the model computes with: of masters
  // copies, else sharing storage. load() checks all names, shapes and dtypes first and throws
  // Error{kInvalidArgument}; after that of shards, placement().publish() is still to come.
  NamedTensors values() const;
  optim::Shards shards() const;  // of those values that are shards: of what
  void load(const NamedTensors& values);

  // Writes weight_files(). A component is written so that it can take the place of the checkpoint
  // that it came from: see weights::write_component(). Returns what was written. Where all
  // processes save_together(), they come here, and one of them `writes`: weights come to it one by
  // one.
  std::vector<std::string> save(const std::string& stem, int64_t step, int64_t epoch,
                                bool writes = true) const;
  bool save_together() const;
  // About what these files take on the disk, and not less.
  uint64_t saved_bytes() const;

 private:
  struct AdaptedLayer {
    Selection::AdaptedLayer layer;
    at::Tensor a, b;
  };
  void adapt(const Selection::AdaptedLayer& layer);
  void load_lora_checkpoint();
  std::vector<lora::LayerWeights> lora_layers(const std::string& component) const;
  void save_lora(const WeightFile& file, int64_t step, int64_t epoch) const;
  void save_whole(const WeightFile& file, int64_t step, bool writes) const;
  const std::vector<optim::Group>& kept() const {
    return placement_->has_wholes() ? groups() : moved();
  }
  double lora_scale() const;

  model::LoadedModel& model_;
  Selection selection_;
  order::Training config_;
  std::vector<AdaptedLayer> adapted_;
  std::optional<ParameterPlacement> placement_;
};

}  // namespace atelier::parameters
