// Limits of memory that a run is planned within.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "host/flags/table.h"
#include "host/weights/storage.h"
#include "memory/device_profile.h"

namespace atelier::model {

struct MemoryLimits {
  bool plans = true;  // false: --vram off, nothing is planned
  // Bytes that the run may take of the device and of the host; nullopt: what they have free.
  std::optional<int64_t> vram = {}, host_memory = {};
  std::vector<weights::Storage> allowed_storages = {};  // kFp8, kInt8: a plan may choose these
  // A device that need not be there; nullopt: the one that is. `atelier plan` alone sets it.
  std::optional<memory::DeviceProfile> device_profile = {};

  // Whether the user said what of a device a plan has to fit into.
  bool is_given() const { return vram || device_profile; }
};

// --vram, --host_memory and --allow_storage.
void add_memory_flags(flags::Table& table, MemoryLimits& limits);

}  // namespace atelier::model
