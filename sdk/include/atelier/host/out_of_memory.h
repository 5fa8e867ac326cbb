// How CUDA and its libraries say that memory is used up.
#pragma once

#include <cstdint>
#include <string_view>

#include "atelier/export.h"

namespace atelier {

// Whether a message of LibTorch says that the memory of a device, or of the host, is used up. Its
// allocators have an error type of their own; the libraries below them only have words. cuDNN finds
// no engine for a convolution both where each one lacks memory and where none can compute it:
// `was_refused` says whether a device's allocator refused memory meanwhile.
ATELIER_API bool says_out_of_memory(std::string_view message, bool was_refused = true);

// How often the allocators of all GPUs of this process refused memory until now.
ATELIER_API int64_t refused_allocations();

}  // namespace atelier
