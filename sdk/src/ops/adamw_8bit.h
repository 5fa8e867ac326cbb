// The step of AdamW with moments of 8 bits, by device; see atelier/host/adamw_8bit.h.
#pragma once

#include "atelier/host/adamw_8bit.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

struct AdamW8BitKernels {
  void (*step)(const AdamW8BitStep& step);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<AdamW8BitKernels> adamw_8bit_kernels;

}  // namespace atelier::ops
