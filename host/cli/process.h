// How the process of a command is set up.
#pragma once

#include <string_view>

#include "host/flags/process_flags.h"

namespace atelier::cli {

// As asked for. Kernels and attention that `atelier tune` proved on this machine run where the
// flags say auto, but in a run that is to be the same on others. Where it proved nothing yet and
// `device`, of --device, may be a GPU, that is told once, unless `is_quiet`.
void set_up(const flags::ProcessSettings& settings, std::string_view device, bool is_quiet = false);

}  // namespace atelier::cli
