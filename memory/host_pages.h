// Pages of host memory that a device copies from and to.
#pragma once

#include <cstdint>
#include <memory>

namespace atelier::memory {

// `bytes` of zeros in pages that are all there: large ones where the system has them, for which
// 2 MiB and more begin at a multiple of 2 MiB. Several threads make them, as the one that pins
// memory would make missing pages one by one while it keeps other threads from the driver.
// Throws Error{kOutOfMemory}.
std::shared_ptr<void> take_host_pages(int64_t bytes);

}  // namespace atelier::memory
