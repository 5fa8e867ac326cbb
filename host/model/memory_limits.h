// The flags that say how much memory a run may take.
#pragma once

#include <string>
#include <vector>

#include "host/flags/table.h"

namespace atelier::flags {

// What the user said of memory.
struct MemoryLimits {
  // "auto" or a size: "12GiB". auto: what the device, and the host, have free. vram may be "off",
  // too: nothing is planned.
  std::string vram = "auto", host_memory = "auto";
  std::vector<std::string> allow_storage = {};  // "fp8", "int8"
  // "h200", "4090" or a file, of a device that need not be there; empty: the one that is. No flag
  // of a run, but of `atelier plan`.
  std::string device_profile = {};
};

// --vram, --host_memory and --allow_storage.
void add_memory_flags(Table& table, MemoryLimits& limits);

}  // namespace atelier::flags
