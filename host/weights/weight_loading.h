// From the bytes of a checkpoint to weights, wherever these come to rest.
#pragma once

#include <functional>
#include <map>

#include "host/files/checkpoint.h"
#include "host/weights/storage.h"
#include "host/weights/weight_binding.h"
#include "memory/residency.h"
#include "memory/transfer_device.h"

namespace atelier::weights {

// Where load_weights puts weights.
struct Landing {
  // Weights that are not named go to the device. kDisk leaves a weight in the mapped file, without
  // bringing its pages into memory; one that cannot rest there goes to the host.
  std::map<const Weight*, memory::Place> places = {};
  // On the CPU, whether what goes to the device may stay in the mapped file.
  bool maps = true;
  // Whether the pages of what stays there, and is not at kDisk, are read now; else when they are
  // used.
  bool populates = true;
  // What goes to the device is read into pinned memory, one part of it while the other is on its
  // way. Null: the device is the host.
  memory::TransferDevice* transfer = nullptr;
  int64_t staging_bytes = int64_t{256} << 20;  // of each of the two parts, at most
};

// Fills the weights. Floating ones arrive in `dtype`, or float32 where they keep that, on `device`,
// or where `landing` says. On the CPU whole tensors of that dtype are mapped and not copied (see
// mapped_file.h). What goes to another device is sent through pinned memory as it is read, and
// everything else is read into the host's memory. What does not stay as it is read (8 bits, scales)
// comes in groups, so that beside the weights little memory is used on either side.
// Scales and codes of the checkpoint are applied. Weights of `resting` are stored in 8 or 4 bits
// and drawn in `dtype`. Throws Error{kNumerics} when one of these holds a value that is not finite,
// and Error{kInternal} for a `device` that is not the CPU without a `landing.transfer`.
void load_weights(const WeightBinding& binding, const files::Checkpoint& checkpoint,
                  at::ScalarType dtype, at::Device device,
                  const std::function<void(int64_t bytes_done)>& progress = {},
                  const WeightStorage& resting = {}, const Landing& landing = {});
// Gives the weights what load_weights would give them without values: on the meta device.
void outline_weights(const WeightBinding& binding, const files::Checkpoint& checkpoint,
                     at::ScalarType dtype, const WeightStorage& resting = {});
// Whether a weight can stay in the mapped file: it is one tensor, or rows of one, as it is drawn.
bool rests_in_file(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                   at::ScalarType dtype, const WeightStorage& resting = {});
// The bytes of each tensor that the weight is made of where it rests: see WeightStore::parts().
std::vector<int64_t> resting_bytes(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                                   at::ScalarType dtype, const WeightStorage& resting = {});
// Bytes of files that load_weights reads.
int64_t bytes_to_read(const WeightBinding& binding, const files::Checkpoint& checkpoint);

}  // namespace atelier::weights
