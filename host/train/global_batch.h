// The samples of an optimizer step, and the processes that they are dealt to.
#pragma once

#include <string>
#include <vector>

#include "host/distributed/ranks.h"
#include "host/order/training.h"
#include "host/report/problems.h"

namespace atelier::train {

// Makes config.order the step of all `processes`: accumulation counts the batches of all of them
// from here on. Of several, the configuration keeps the number of samples, so that a run that is
// resumed by more or by fewer learns from the same steps; one that a single process began keeps its
// own, too. A --global_batch_size that batches do not make up becomes a problem.
void share_batch(order::Training& config, int processes, report::Problems& problems);

// Fits an order to its `ranks`, the processes that carry it out; what cannot be becomes a problem.
// Gives the notes of fit_resumed().
std::vector<std::string> fit_to_ranks(order::Training& config, report::Problems& problems);

// A resumed run may go on with another number of processes: what it alone says, and what does not
// divide them, becomes the preset (--zero_group all, --sequence_parallel 1). Gives a note on each.
std::vector<std::string> fit_resumed(order::Training& config, const distributed::Ranks& ranks);

}  // namespace atelier::train
