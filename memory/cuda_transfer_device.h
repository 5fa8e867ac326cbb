// A CUDA device, which copies by streams and events.
#pragma once

#include <memory>

#include "memory/transfer_device.h"

namespace atelier::memory {

// Copies go through a stream for each direction. Host memory is our own, registered with the CUDA
// runtime that LibTorch brought, since LibTorch's pinned allocator rounds to powers of two.
std::unique_ptr<TransferDevice> make_cuda_transfer_device(at::Device device);

}  // namespace atelier::memory
