// A way to share a training and its plan, as flags of `atelier train`.
#pragma once

#include <string>

#include "host/order/training.h"
#include "host/plan/planning.h"
#include "host/plan/rank_sizes.h"

namespace atelier::plan {

// A training of `order` that is shared as `mode` says.
order::Training shared_settings(const order::Training& order, const RankMode& mode);

// The flags that say so beside those of `order`, in whose place they stand where both say
// something; empty: none is needed.
std::string sharing_flags(const order::Training& order, const RankMode& mode);

// The flags that say what its plan takes beside that: what is kept of activations, where blocks
// rest, and in which storage. With both the same is planned.
std::string placing_flags(const order::Training& order, const Planned& planned);

}  // namespace atelier::plan
