// Flags that set up the whole process.
#pragma once

#include <cstdint>
#include <optional>

#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "host/flags/table.h"

namespace atelier::flags {

struct ProcessSettings {
  ops::AttentionBackend attention = ops::AttentionBackend::kAuto;
  ops::Kernels kernels = ops::Kernels::kAuto;
  int64_t threads = 0;            // of the CPU; 0: one for each core
  bool is_deterministic = false;  // on a GPU; on the CPU everything is
  // Float32 convolutions of a GPU multiply 10 bits of mantissa; nullopt: they do.
  std::optional<bool> tf32;
};

// --attention, --kernels, --tf32, --deterministic and --threads.
void add_process_flags(Table& table, ProcessSettings& settings);

// Sets up the process. A number of threads that is out of its range is passed over.
void apply(const ProcessSettings& settings);

}  // namespace atelier::flags
