// Host memory of the ranks of one machine.
#pragma once

#include <memory>

#include "host/distributed/group.h"
#include "memory/shared_slabs.h"

namespace atelier::distributed {

// The memory that the ranks on this rank's machine have together, whoever started them: it is that
// of the first of them. Null where this rank is alone there, and where the system does not let it
// share any. All ranks come here.
std::shared_ptr<memory::SharedSlabs> share_machine(Group& group);

}  // namespace atelier::distributed
