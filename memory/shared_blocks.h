// Blocks that rest in host memory once for all processes of a machine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "atelier/block.h"

#include "memory/shared_slabs.h"
#include "memory/slab.h"

namespace atelier::memory {

// How the weights of a block come that are not loaded before.
struct BlockLoading {
  std::function<void(Block&)> load = {};
  // Gives them the shapes and dtypes that they would be loaded with, on the meta device.
  std::function<void(Block&)> outline = {};
};

// Where the blocks of a component are shared.
struct SlabSharing {
  std::shared_ptr<SharedSlabs> slabs = nullptr;  // null: each process has memory of its own
  std::string name = {};                         // equal ones mean equal bytes
};

// Where a block lies that is shared: first the weights that come with it, then the others, each in
// the order of visit_weights().
struct SharedBlock {
  std::shared_ptr<void> memory = nullptr;  // null: there was no place
  int64_t bytes = 0;
  std::map<const Weight*, std::vector<SlabSlice>> slices = {};  // of the parts of each weight
};

// Brings blocks to `place`: their weights come from this process where no other brings them, and
// are outlined afterwards. Each process begins with other blocks, and finds what the others have
// brought meanwhile. Blocks for which there is no place are loaded. `blocks`: in running order,
// null where one is not shared. `on_demand`: weights that do not come with their block. Returns
// where each of `blocks` lies.
std::vector<SharedBlock> bring_shared(const std::vector<Block*>& blocks,
                                      const std::set<const Weight*>& on_demand,
                                      const SlabSharing& sharing, const BlockLoading& loading);

}  // namespace atelier::memory
