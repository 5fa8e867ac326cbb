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

  // Gives the leaves the averages, rounded to their dtype; called again, what they had before.
  void swap();

  // By parameter name; shares storage. With it "num_updates".
  NamedTensors state() const;
  // Throws Error{kInvalidArgument} as Optimizer::load_state.
  void load_state(const NamedTensors& state);

 private:
  struct Average {
    std::string name;
    at::Tensor leaf, value;
    at::Tensor put_aside;  // the leaf's own values while it has the average
  };
  std::vector<Average> averages_;
  double decay_;
  at::Tensor num_updates_;  // int64 scalar
};

}  // namespace atelier::optim
