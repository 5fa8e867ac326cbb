// Measures how fast the ranks of a group exchange what they hold.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "host/distributed/group.h"
#include "memory/link_profile.h"

namespace atelier::distributed {

// One kind of exchange, as memory::exchange_seconds() tells its time.
struct MeasuredExchange {
  std::string name;              // "all-reduce"
  std::string among;             // "ranks of a machine", "all ranks"
  double latency_seconds = 0.0;  // of each of its passes
  double bytes_per_second = 0.0;
};

struct MeasuredLinks {
  std::vector<MeasuredExchange> exchanges;
  memory::LinkProfile links;  // as slow as the slowest of these
};

// All ranks call it, and find the same machines; times are those of each. Takes a few seconds.
// `device`: where the tensors lie.
MeasuredLinks measure_links(Group& group, at::Device device);

}  // namespace atelier::distributed
