#include "atelier/host/out_of_memory.h"

#include <algorithm>
#include <array>

namespace atelier {
namespace {

// Both parts stand in the message.
struct Words {
  std::string_view what, where = {};
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
    Words{"unable to find an engine to execute this computation"},
    Words{"CUSOLVER_STATUS_ALLOC_FAILED"},
    Words{"CUFFT_ALLOC_FAILED"},
};

}  // namespace

bool says_out_of_memory(std::string_view message) {
  const auto has = [&](std::string_view part) { return message.find(part) != message.npos; };
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](const Words& words) { return has(words.what) && has(words.where); });
}

}  // namespace atelier
