// Memory that is a mapped file, and what of it need not stay.
#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier {

// `begin` to begin + bytes is a file, mapped and never written to, until forget_file(begin). Used
// from any thread.
ATELIER_API void note_file(const void* begin, size_t bytes);
ATELIER_API void forget_file(const void* begin);

// Gives back the pages of a file that lie inside `value`: the next use brings them again, out of
// the system's cache or from the disk. Does nothing for other memory.
ATELIER_API void give_back_pages(const at::Tensor& value);

}  // namespace atelier
