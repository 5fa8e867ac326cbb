// Who holds what of the memory, told when there is none left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/model/model_loader.h"
#include "memory/device_meter.h"
#include "memory/transfer_device.h"

namespace atelier::model {

struct Holder {
  std::string name;  // "weights of dit"
  int64_t device_bytes = 0, host_bytes = 0;
  std::string detail = {};  // "2 of 4 blocks stay"; may be empty
};

// The weights of every component that is loaded, by their shapes and storages; of streamed ones
// what residents, slots and slabs take. No weight is drawn.
std::vector<Holder> weight_holders(LoadedModel& model);

// A line for each that holds something, and one for the device.
std::vector<std::string> holder_lines(const std::vector<Holder>& holders,
                                      const memory::DeviceBytes& device);

// What host memory that the system did not let us pin costs, and the way out; said once.
class PinningProblem {
 public:
  // Empty: all is pinned, or it was said before.
  std::string news(const memory::TransferDevice::Stats& stats);

 private:
  bool is_said_ = false;
};

// Flags that would take less of the device for the largest component that is loaded, as "--offload
// dit=host"; those that are in use are left out.
std::vector<std::string> flags_for_weights(LoadedModel& model);
// "use A, B or C".
std::string hint_of(const std::vector<std::string>& flags);

}  // namespace atelier::model
