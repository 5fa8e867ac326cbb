// How the processes of a run meet at a store.
#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "host/distributed/ranks.h"

namespace c10d {
class Store;
}

namespace atelier::distributed {

// This machine's name.
std::string host_name();

// Processes for which this is the same see each other by number: it names the machine since it was
// started, and a container's own numbers.
std::string process_space();

// A process that has come.
struct Attendee {
  std::string host;
  pid_t process = 0;
  std::string space;  // see process_space()
};

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;  // of those who have met alone; it waits without limit
  std::vector<Attendee> attendees;        // by rank
};

// Waits at the store of `ranks`, which rank 0 keeps unless the launcher does, until all of them are
// there. A launcher's store may hold what was left by an earlier start of the same run, and nobody
// counts starts for all machines: torchrun's agents count each for itself. So rank 0 draws a number
// for the round, and answers with it those who ask from then on.
//
// After 10 s, and then now and then, a line on stderr says for whom this process waits.
//
// Throws, on all that have come, Error{kPeerLost} that names those that did not come to rank 0
// within `limit`, and Error{kInvalidArgument} where two processes have the same rank, or some know
// another number of processes; Error{kPeerLost} where rank 0 does not answer within `limit`, and
// Error{kEnvironment} when the port is taken, or its host has a name that nobody knows.
Meeting meet(const Ranks& ranks, std::chrono::milliseconds limit);

}  // namespace atelier::distributed
