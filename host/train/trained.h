// The tensors that a run trains: leaves in the model, and the files they are saved as.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "atelier/conditioning.h"

#include "host/lora/lora_writer.h"
#include "host/model/model_loader.h"
#include "host/optim/optimizer.h"
#include "host/report/problems.h"
#include "host/train/config.h"
#include "host/train/host_gradients.h"
#include "host/train/selection.h"
#include "memory/residency.h"

namespace atelier::train {

// Whether the LoRA file that training begins with is one of the selected layers; reads headers
// only. Mistakes become problems. Throws what LoraFile::open and Targets::match throw.
void check_lora_checkpoint(model::LoadedModel& model, const Selection& selection,
                           const LoraSettings& settings, report::Problems& problems);

// Whether trained tensors are moved on the host: because the user wants it, or because the weights
// that are trained rest there.
bool trains_on_host(const model::LoadedModel& model, const Selection& selection,
                    const Config& config);

// What weights of `selection` are saved as: "STEM.safetensors"; of several parts, one file each:
// "STEM.lora.safetensors", "STEM.text_encoder.safetensors".
std::map<std::string, std::string> weight_files(const Selection& selection,
                                                const std::string& stem);

// Makes the selected weights leaves of the autograd graph and puts LoRA factors into the selected
// layers; taken out again by the destructor. Not thread-safe.
//
// Where trains_on_host(), groups() holds tensors on the host: the values of weights that are
// streamed, and copies of leaves that stay on the device. Gradients come to them through
// host_gradients(), and publish() brings their values back.
class TrainedTensors {
 public:
  // Every component of `selection` is loaded. LoRA factors are float32: A uniform in
  // +-1/sqrt(in), B zero, or those of config.lora.checkpoint, see check_lora_checkpoint(). `model`
  // outlives this.
  TrainedTensors(model::LoadedModel& model, Selection selection, const Config& config);
  ~TrainedTensors();
  TrainedTensors(const TrainedTensors&) = delete;
  TrainedTensors& operator=(const TrainedTensors&) = delete;

  const Selection& selection() const { return selection_; }
  const std::vector<optim::Group>& groups() const { return groups_; }
  int64_t count() const;  // of numbers

  // LoRA dropout works while training only.
  void set_training(bool is_training);
  void clear_gradients();

  // Null unless tensors are trained on the host.
  HostGradients* host_gradients() { return gradients_ ? &*gradients_ : nullptr; }
  // Values of groups() that were written are computed with from now on.
  void publish();
  // Bytes of weights in streamed blocks that stay on the device, see OffloadSettings::least_bytes.
  int64_t kept_bytes() const { return kept_bytes_; }

  // By parameter name, sharing storage; load() checks all names and shapes first and throws
  // Error{kInvalidArgument}.
  NamedTensors values() const;
  void load(const NamedTensors& values);

  // Writes weight_files(). A component is written so that it can take the place of the checkpoint
  // that it came from: see weights::write_component(). Returns the files.
  std::vector<std::string> save(const std::string& stem, int64_t step, int64_t epoch) const;
  // About what these files take on the disk, and not less.
  uint64_t saved_bytes() const;

 private:
  struct Adapted {
    Selection::AdaptedLayer layer;
    at::Tensor a, b;
  };
  // A tensor of groups() that is trained on the host.
  struct OnHost {
    at::Tensor value;
    at::Tensor leaf;           // on the device; undefined for a weight that is streamed
    Weight* weight = nullptr;  // the streamed one
    const Block* block = nullptr;
  };
  void train_weights(optim::Group& group);
  void train_streamed(const Selection::TrainedWeight& trained, optim::Group& group);
  void train_resident(const Selection::TrainedWeight& trained, const at::Tensor& value,
                      optim::Group& group);
  void add_parameter(const std::string& name, const at::Tensor& leaf, optim::Group& group);
  void connect_gradients();
  void find_blocks();
  void add_layers(optim::Group& group_a, optim::Group& group_b);
  void load_lora_checkpoint();
  std::vector<lora::LayerWeights> lora_layers() const;
  void save_lora(const std::string& path, int64_t step, int64_t epoch) const;
  void save_whole(const std::string& component, const std::string& path, int64_t step) const;
  double lora_scale() const;

  model::LoadedModel& model_;
  Selection selection_;
  Config config_;
  std::vector<Adapted> adapted_;
  std::vector<optim::Group> groups_;
  bool is_on_host_;
  std::unique_ptr<memory::Port> own_port_;    // of a model that nothing of is streamed
  memory::Port* port_ = nullptr;              // null: all is on the device
  std::map<const Weight*, Block*> block_of_;  // of streamed components
  std::map<std::string, OnHost> on_host_;     // by parameter name
  std::map<const Block*, memory::Residency*> trained_blocks_;  // streamed
  int64_t kept_bytes_ = 0;
  std::optional<HostGradients> gradients_;
};

}  // namespace atelier::train
