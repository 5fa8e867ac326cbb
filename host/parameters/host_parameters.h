// Trained tensors that rest in host memory, where the optimizer moves them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/block.h"

#include "host/model/model_loader.h"
#include "host/optim/optimizer.h"
#include "host/parameters/host_gradients.h"
#include "host/parameters/selection.h"
#include "memory/transfer_device.h"

namespace atelier::parameters {

// A copy in pinned memory.
at::Tensor copy_on_host(memory::TransferDevice& transfer, const at::Tensor& value);

// Values of weights that are streamed, and copies of leaves on the device. Not thread-safe.
class HostParameters {
 public:
  // Weights of less than `least_bytes` stay on the device, and are copied like other leaves.
  // `model` and `transfer` outlive this.
  HostParameters(model::LoadedModel& model, memory::TransferDevice& transfer, int64_t least_bytes);
  ~HostParameters();  // while leaves are leaves
  HostParameters(const HostParameters&) = delete;
  HostParameters& operator=(const HostParameters&) = delete;

  // Trains `value` where the block that the weight belongs to rests. nullopt: it is small.
  std::optional<optim::Parameter> add(const std::string& name,
                                      const Selection::TrainedWeight& trained,
                                      const at::Tensor& value, const Block& block);
  optim::Parameter add_copy(std::string name, const at::Tensor& leaf);
  std::string note() const;

  HostGradients& gradients() { return gradients_; }
  const HostGradients& gradients() const { return gradients_; }
  // See ParameterPlacement::backward().
  void backward(const at::Tensor& loss, const at::Tensor& total,
                const std::optional<HostGradients::Move>& move);
  void clear_gradients();
  // The device gets what was moved.
  void publish();

 private:
  struct Copy {
    at::Tensor value, leaf;  // on the host and on the device
  };

  model::LoadedModel& model_;
  memory::TransferDevice& transfer_;
  int64_t least_bytes_;
  HostGradients gradients_;
  std::map<const Block*, memory::Residency*> trained_blocks_;
  std::vector<Weight*> streamed_;
  std::vector<Copy> copies_;
  size_t count_ = 0;        // of parameters
  int64_t kept_bytes_ = 0;  // of weights that stay on the device for being small
};

}  // namespace atelier::parameters
