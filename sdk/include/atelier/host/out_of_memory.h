// How CUDA and its libraries say that memory is used up.
#pragma once

#include <string_view>

#include "atelier/export.h"

namespace atelier {

// Whether a message of LibTorch says that the memory of a device, or of the host, is used up. Its
// allocators have an error type of their own; the libraries below them only have words, of which
// some mean it only where less than a tenth of the memory is free. `free_share`: of the device, 0
// where that is not known.
ATELIER_API bool says_out_of_memory(std::string_view message, double free_share = 0.0);

}  // namespace atelier
