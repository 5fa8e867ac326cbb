// Where the blocks of components rest while they do not run: on the device, on the host, or in
// their files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/block.h"

#include "host/files/checkpoint.h"
#include "host/report/problems.h"
#include "host/weights/storage.h"
#include "host/weights/weight_binding.h"
#include "memory/residency.h"

namespace atelier::model {

using PlaceByComponent = std::map<std::string, memory::Place, std::less<>>;

struct Placement {
  // Where blocks rest that do not stay on the device; components that are not named stay there
  // whole.
  PlaceByComponent offload = {};
  // Whether blocks of the other components rest on the host, too, unless that is the device.
  bool offload_others = false;
  // Blocks that stay on the device all the same, by component.
  std::map<std::string, int64_t, std::less<>> resident_blocks = {};
  // Blocks of the denoisers, whatever the family calls them.
  std::optional<int64_t> resident_denoiser_blocks = std::nullopt;
  // Blocks that come ahead; nullopt: as a plan says, or as memory::ResidencyPlan has it.
  std::optional<int64_t> prefetch = std::nullopt;
  // Several denoisers are loaded and run one after the other: of those that are offloaded the
  // blocks of one are on the device at a time, those that stay there too.
  bool denoisers_take_turns = false;
  // Among how many processes each block of the denoisers and their controls is divided; 1: each has
  // them whole. Where they rest, parts of them do; none of them stays on the device whole.
  int denoiser_shards = 1;
};

// Where weights rest, and as what.
struct WeightLayout {
  Placement placement = {};
  weights::StorageByComponent storage = {};
};

// "dit=host", "text_encoder=disk". Throws Error{kInvalidArgument}.
PlaceByComponent parse_offload(const std::vector<std::string>& entries);

// "20", of the denoiser, or "dit=20,text_encoder=4". Throws Error{kInvalidArgument}.
void parse_resident_blocks(const std::vector<std::string>& entries, Placement& placement);

// The components of a family, and of a model of it, as far as placing them asks.
struct PlacedComponents {
  std::vector<std::string> known;          // to the family
  std::vector<std::string> denoisers;      // of the family
  std::vector<std::string> controls = {};  // of the family
  std::map<std::string, int64_t> blocks;   // how many each has, of those that are there
};

// A plan for each offloaded component that is there. What is wrong becomes problems.
std::map<std::string, memory::ResidencyPlan, std::less<>> plan_residency(
    const Placement& placement, const PlacedComponents& components, report::Problems& problems);

// The weights of a block and of all below it.
std::set<const Weight*> weights_of(Block& block);

// Makes blocks that cannot rest in their files rest on the host, and returns how many those are:
// blocks with a weight that is converted, quantised, or put together from several tensors.
int64_t keep_on_host_what_no_file_has(memory::ResidencyPlan& plan,
                                      const std::vector<Block*>& blocks,
                                      const weights::WeightBinding& binding,
                                      const files::Checkpoint& checkpoint, at::ScalarType dtype,
                                      const weights::WeightStorage& storage);

}  // namespace atelier::model
