// Flags that set up the whole process.
#pragma once

#include <cstdint>
#include <string>

#include "host/report/problems.h"

namespace atelier::cli {

// --attention, --kernels and --threads, as their flags' choices name them; 0 threads is one for
// each core.
void apply_process_flags(const std::string& attention, const std::string& kernels, int64_t threads,
                         report::Problems& problems);

}  // namespace atelier::cli
