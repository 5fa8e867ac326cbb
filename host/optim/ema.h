// The running average of trained tensors, on the CPU.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/conditioning.h"

#include "host/optim/optimizer.h"
#include "memory/transfer_device.h"

namespace atelier::optim {

// Float32 copies; decay rises with the steps as min(decay, (1 + n) / (10 + n)).
class Ema {
 public:
  // `transfer`: of the device that the leaves are on, outlives this; null: they are on the host.
  // `turns`: of components that not every step moves, by name: whose turn it is then.
  Ema(const std::vector<Group>& groups, double decay, memory::TransferDevice* transfer = nullptr,
      const std::map<std::string, std::string>& turns = {});

  // Sends the leaves from the device, as they are when what was queued until now is done. Nobody
  // waits, and computing that does not write them goes on beside it; what does is queued behind
  // release(). Leaves on the host are read by update() instead.
  void read();
  void release();
  // average = d average + (1 - d) leaf, as it was at the last read(), whose end it waits for.
  // `moved`: whose turn the step was; averages of the other ones stay, and count no step.
  void update(std::string_view moved = {});

  // Gives the leaves the averages, rounded to their dtype; called again, what they had before.
  void swap();

  // By parameter name; shares storage. With it "num_updates", and "num_updates.NAME" of each whose
  // turns are counted.
  NamedTensors state() const;
  Shards shards() const;  // see Optimizer
  // Throws Error{kInvalidArgument} as Optimizer::load_state.
  void load_state(const NamedTensors& state);

 private:
  struct Average {
    std::string name;
    std::string turn;  // empty: every step moves it
    at::Tensor leaf, value;
    at::ScalarType dtype;  // of the leaf, or of what it is the master of
    std::optional<Shard> shard;
    at::Tensor on_host;    // what read() fills: the leaf itself where it is there
    at::Tensor put_aside;  // the leaf's own values while it has the average
  };
  memory::TransferDevice* transfer_;
  memory::Ticket arrived_;  // what read() sent last
  std::vector<Average> averages_;
  double decay_;
  std::map<std::string, at::Tensor> num_updates_;  // int64 scalars, by turn
};

}  // namespace atelier::optim
