// Starts the processes of a run on this machine, and looks after them until the last one has ended.
#pragma once

#include <string>
#include <vector>

#include "host/distributed/ranks.h"

namespace atelier::distributed {

// Names are those of the flags.
struct LaunchOptions {
  int nproc_per_node = 1;
  int nnodes = 1, node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;                    // 0: a free one, where all processes are on this machine
  std::vector<std::string> command = {};  // what each process runs, the program first
};

// Starts `nproc_per_node` processes, each with the variables that find_ranks() reads, and waits for
// them. SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all. Processes end with this
// one, whatever ends it. When one fails, the others have a few seconds to end by themselves and are
// killed then; a line on stderr names the one whose failure leads: an error of its own comes before
// a signal that ended one, and that before the loss of another one.
//
// Returns 0 when all did; else the leading one's exit code, which is 6 where a signal ended it, and
// 128 + N where that was a signal N that asks to stop. Throws Error{kEnvironment} when a process
// cannot be started.
int launch(const LaunchOptions& plan);

}  // namespace atelier::distributed
