// How the C library's allocator treats the large blocks that tensors are.
#pragma once

namespace atelier::device {

// Lets freed tensors be used again instead of going back to the system: by default each large
// output is mapped, filled with zeros page by page, and unmapped, which costs more than a fused
// operator that writes it. Call it first thing in main(), before any thread is started.
void keep_freed_memory();

// Gives back what is free. Call it when something large left for good: the weights of a component.
void release_freed_memory();

}  // namespace atelier::device
