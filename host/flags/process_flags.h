// Flags that set up the whole process.
#pragma once

#include <cstdint>
#include <string>

#include "host/flags/table.h"

namespace atelier::flags {

struct ProcessSettings {
  std::string attention = "auto";  // auto, flash, efficient, cudnn or math
  std::string kernels = "auto";    // auto or composed
  int64_t threads = 0;             // of the CPU; 0: one for each core
};

// --attention, --kernels and --threads.
void add_process_flags(Table& table, ProcessSettings& settings);

// Sets up the process. A number of threads that is out of its range is passed over.
void apply(const ProcessSettings& settings);

}  // namespace atelier::flags
