// The running average of trained tensors, on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "atelier/conditioning.h"

#include "host/optim/optimizer.h"

namespace atelier::optim {

// Float32 copies; decay rises with the steps as min(decay, (1 + n) / (10 + n)).
class Ema {
 public:
  Ema(const std::vector<Group>& groups, double decay);

  // average = d average + (1 - d) leaf. Reads the leaves back from the device.
  void update();

  // Exchanges the leaves' values with the averages; called twice they are as before.
  void swap();

  // By parameter name; shares storage. With it "num_updates".
  NamedTensors state() const;
  // Throws Error{kInvalidArgument} as Optimizer::load_state.
  void load_state(const NamedTensors& state);

 private:
  struct Average {
    std::string name;
    at::Tensor leaf, value;
  };
  std::vector<Average> averages_;
  double decay_;
  int64_t num_updates_ = 0;
};

}  // namespace atelier::optim
