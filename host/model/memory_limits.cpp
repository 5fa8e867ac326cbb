#include "host/flags/memory_flags.h"

namespace atelier::flags {

void add_memory_flags(Table& table, MemoryLimits& limits) {
  table
      .text("vram", limits.vram,
            "what the run may take of the device, 12GiB; auto: what a GPU has free; off: nothing "
            "is planned. What was not said otherwise is chosen so that it fits")
      .text("host_memory", limits.host_memory,
            "what it may take of the host for that; auto: what is free")
      .list("allow_storage", limits.allow_storage,
            "8-bit storages that a plan may choose where that is faster: fp8, int8");
}

}  // namespace atelier::flags
