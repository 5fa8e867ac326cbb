// How CUDA and its libraries say that memory is used up.
#pragma once

#include <string_view>

#include "atelier/export.h"

namespace atelier {

// Whether a message of LibTorch says that the memory of a device, or of the host, is used up. Its
// allocators have an error type of their own; the libraries below them only have words.
ATELIER_API bool says_out_of_memory(std::string_view message);

}  // namespace atelier
