// How the process of a command is set up.
#pragma once

#include <string_view>

#include "host/distributed/group.h"
#include "host/flags/process_flags.h"
#include "host/model/model_loader.h"
#include "host/order/training.h"
#include "host/report/problems.h"

namespace atelier::cli {

// What a command uses its process for.
struct ProcessUse {
  std::string_view device = "auto";  // of --device
  bool is_quiet = false;
  bool computes = true;  // false: nothing runs on the device, as where a run is planned
};

// As asked for. Under --kernels auto, kernels and attention that were proven on this machine run
// but in a run that is to be the same on others, and are named in `settings` from then on. Where
// nothing was proven yet, the first process that computes on a GPU here does that before; others
// say so once. Those that the settings name already run as far as they are right here; a name that
// nothing can be proven of is a problem.
void set_up(flags::ProcessSettings& settings, const ProcessUse& use, report::Problems& problems);
// As the settings of a training say; its effective_toml has the names.
void set_up(order::Training& config, bool computes, report::Problems& problems);

// Says where products of 8 bits that were asked for take longer than those in bfloat16, as it was
// measured on the GPUs here.
void note_slow_products(const model::LoadOptions& load, bool is_quiet);

// All processes of a run choose as the first one did, but for what is wrong with one of them.
void agree_on_kernels(distributed::Group& group, flags::KernelChoice& kernels);
void agree_on_kernels(distributed::Group& group, order::Training& config);

}  // namespace atelier::cli
