// How the C library's allocator treats the large blocks that tensors are.
#pragma once

#include <cstdint>

namespace atelier::device {

// Lets freed tensors be used again instead of going back to the system: by default each large
// output is mapped, filled with zeros page by page, and unmapped, which costs more than a fused
// operator that writes it. Call it first thing in main(), before any thread is started.
void keep_freed_memory();

// Gives back what is free. Call it when something large left for good: the weights of a component.
void release_freed_memory();

// Gives back what is free where more than so many bytes of it are still pages of this process. Call
// it between pieces of work of changing sizes: what one leaves may not fit the next.
void bound_freed_memory(int64_t most_bytes);

// oneDNN, and LibTorch behind its operators, keep so many of the kernels that are made for each
// shape, 80 to 250 KiB each, unless the environment says another number. Call it before the first
// product.
void keep_kernels(int64_t most);

}  // namespace atelier::device
