#include "atelier/host/out_of_memory.h"

#include <algorithm>
#include <array>

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace atelier {
namespace {

// Both parts stand in the message.
struct Words {
  std::string_view what, where = {};
  bool needs_refusal = false;
};

constexpr std::array kWords = {
    Words{"DefaultCPUAllocator: ", "memory"},
    Words{"CUDA out of memory"},
    Words{"CUDA error: out of memory"},
    Words{"CUDA driver error: out of memory"},
    Words{"CUBLAS_STATUS_ALLOC_FAILED"},
    // A library that finds no memory for itself says that it is not there.
    Words{"CUBLAS_STATUS_NOT_INITIALIZED", "cublasCreate"},
    Words{"CUBLAS_STATUS_NOT_INITIALIZED", "cublasLtCreate"},
    Words{"CUDNN_STATUS_NOT_INITIALIZED"},
    Words{"CUDNN_STATUS_ALLOC_FAILED"},
    Words{"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"},
    Words{"CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"},
    // For convolutions LibTorch tries the engines in turn, and passes over each one whose workspace
    // it cannot allocate.
    Words{"unable to find an engine to execute this computation", "", /*needs_refusal=*/true},
    Words{"CUSOLVER_STATUS_ALLOC_FAILED"},
    Words{"CUFFT_ALLOC_FAILED"},
};

}  // namespace

bool says_out_of_memory(std::string_view message, bool was_refused) {
  const auto has = [&](std::string_view part) { return message.find(part) != message.npos; };
  return std::any_of(kWords.begin(), kWords.end(), [&](const Words& words) {
    return has(words.what) && has(words.where) && (was_refused || !words.needs_refusal);
  });
}

int64_t refused_allocations() {
  if (!at::hasCUDA()) return 0;
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(c10::kCUDA);
  if (!allocator->initialized()) return 0;
  int64_t refused = 0;
  const int count = c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
  for (int i = 0; i < count; ++i)
    refused += allocator->getDeviceStats(static_cast<c10::DeviceIndex>(i)).num_ooms;
  return refused;
}

}  // namespace atelier
