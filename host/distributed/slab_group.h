// Slabs of weights that are divided among ranks.
#pragma once

#include <memory>

#include "host/distributed/group.h"
#include "memory/slab_peers.h"

namespace atelier::distributed {

// Each rank of `group` has a part of every slab. Gathers are the only exchanges of the group.
std::shared_ptr<memory::SlabPeers> divide_slabs(std::shared_ptr<Group> group);

}  // namespace atelier::distributed
