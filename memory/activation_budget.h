// How much of a device the activations of a training step may take.
#pragma once

#include <cstdint>
#include <string_view>

#include <c10/core/Device.h>

namespace atelier::memory {

struct ActivationBudget {
  enum class Kind {
    kAuto,  // what the device has left when the plan is made; nothing is recomputed if that fits
    kFraction,  // of the bytes of all matrix products and attention outputs
    kBytes,     // of all activations of blocks at their peak
    kNone,      // nothing is recomputed
  };
  Kind kind = Kind::kNone;
  double fraction = 0.0;  // in [0, 1]; 0 keeps the inputs of blocks and nothing else
  int64_t bytes = 0;
};

// "auto", "none", "full" (the same as 0), a number in [0, 1], or a size: "12GiB", "1.5GB",
// "800MiB", "800MB". Throws Error{kInvalidArgument}.
ActivationBudget parse_activation_budget(std::string_view text);

// What can be allocated on `device` now, in bytes: nine tenths of what a GPU has free, with what
// LibTorch holds and does not use; eight tenths of what the system and the control group leave.
int64_t available_bytes(at::Device device);

// All that is free on `device` now, in bytes: what cannot be allocated in any case is more than
// this. Of the CPU with the room that is left for swapping.
int64_t free_bytes(at::Device device);

}  // namespace atelier::memory
