// The tensors that a run trains: leaves in the model, and the files they are saved as.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "atelier/conditioning.h"

#include "host/checkpoint/model_loader.h"
#include "host/optim/optimizer.h"
#include "host/report/problems.h"
#include "host/train/config.h"
#include "host/train/selection.h"

namespace atelier::train {

// Whether the LoRA file that training begins with is one of the selected layers; reads headers
// only. Mistakes become problems. Throws what LoraFile::open and Targets::match throw.
void check_lora_checkpoint(checkpoint::LoadedModel& model, const Selection& selection,
                           const LoraSettings& settings, report::Problems& problems);

// Makes the selected weights leaves of the autograd graph and puts LoRA factors into the selected
// layers; taken out again by the destructor. Not thread-safe.
class TrainedTensors {
 public:
  // Every component of `selection` is loaded. LoRA factors are float32: A uniform in
  // +-1/sqrt(in), B zero, or those of config.lora.checkpoint, see check_lora_checkpoint(). `model`
  // outlives this.
  TrainedTensors(checkpoint::LoadedModel& model, Selection selection, const Config& config);
  ~TrainedTensors();
  TrainedTensors(const TrainedTensors&) = delete;
  TrainedTensors& operator=(const TrainedTensors&) = delete;

  const std::vector<optim::Group>& groups() const { return groups_; }
  int64_t count() const;  // of numbers

  // LoRA dropout works while training only.
  void set_training(bool is_training);
  void clear_gradients();

  // By parameter name, sharing storage; load() checks all names and shapes first and throws
  // Error{kInvalidArgument}.
  NamedTensors values() const;
  void load(const NamedTensors& values);

  // Writes "STEM.safetensors"; of several parts, one file each: "STEM.lora.safetensors",
  // "STEM.text_encoder.safetensors". A component is written whole, under the names of the
  // checkpoint that it came from, so that it can take that one's place. Returns the files.
  std::vector<std::string> save(const std::string& stem, int64_t step, int64_t epoch) const;

 private:
  struct Adapted {
    Selection::AdaptedLayer layer;
    at::Tensor a, b;
  };
  void train_weights(optim::Group& group);
  void add_layers(optim::Group& group_a, optim::Group& group_b);
  void load_lora_checkpoint();
  void save_lora(const std::string& path, int64_t step, int64_t epoch) const;
  void save_whole(const std::string& component, const std::string& path, int64_t step) const;
  double lora_scale() const;

  checkpoint::LoadedModel& model_;
  Selection selection_;
  Config config_;
  std::vector<Adapted> adapted_;
  std::vector<optim::Group> groups_;
};

}  // namespace atelier::train
