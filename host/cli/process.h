// How the process of a command is set up.
#pragma once

#include "host/flags/process_flags.h"

namespace atelier::cli {

// As asked for. With --kernels auto the kernels that `atelier tune` proved on this machine run, but
// in a run that is to be the same on others; where it proved nothing yet, that is told once.
void set_up(const flags::ProcessSettings& settings);

}  // namespace atelier::cli
