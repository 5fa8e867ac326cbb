// Parts of a saved state that several processes wrote, each a file of shards; any number of
// processes reads what it needs of them.
#pragma once

#include <map>
#include <string>

#include "atelier/conditioning.h"

#include "host/optim/optimizer.h"
#include "host/run/run_folder.h"

namespace atelier::parameters {

// Who of a run has which shards.
struct ShardOwner {
  int index = 0, count = 1;   // of its part, and of all parts
  bool is_first_copy = true;  // of several processes that have this part
  int rank = 0, num_ranks = 1;
};

// Adds what the owner writes of the part `name` of a saved state, "optimizer", to its files:
// "optimizer.safetensors", or "optimizer-00001-of-00004.safetensors" of several. There the key of a
// shard says behind the value's name where it begins: "NAME.exp_avg@4096"; what is whole is in the
// first file.
void add_part(run::SavedStateFiles& files, const std::string& name, const NamedTensors& state,
              const optim::Shards& shards, const ShardOwner& owner);

bool has_part(const run::SavedState& saved_state, const std::string& name);

// What the part holds, by the names of its values, whoever wrote it: reads headers alone.
struct SavedValue {
  int64_t numel = 0;  // of the whole
  at::ScalarType dtype = at::kFloat;
};
std::map<std::string, SavedValue> values_of_part(const run::SavedState& saved_state,
                                                 const std::string& name);

// Reads the part `name`, whoever wrote it: values by name, those of `like` cut as `shards` says,
// others as they are; what is not there is missing. Of what does not lie in files of its own, a
// process reads the slices that it needs, and checks the contents of its share of the files. Throws
// as SavedState::load().
NamedTensors read_part(const run::SavedState& saved_state, const std::string& name,
                       const NamedTensors& like, const optim::Shards& shards,
                       const ShardOwner& owner);

}  // namespace atelier::parameters
