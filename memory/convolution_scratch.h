// What the CPU's convolutions work in, beside their tensors.
#pragma once

#include <cstdint>

#include "atelier/host/dry_run.h"

namespace atelier::memory {

// Bytes that LibTorch allocates for a convolution beside what it returns, at most at one time: by
// the processor's instructions and the dtype that is nothing, or as much as every input at every
// place of the kernel. It is made once to find that: small ones as they are, larger ones on fewer
// rows and columns. Known ones are remembered. Safe to call from several threads.
int64_t convolution_scratch(const ops::DryRun::Convolution& convolution);

}  // namespace atelier::memory
