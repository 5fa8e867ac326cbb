// Values of weights that rest as blocks of small codes, by device; see atelier/host/packed_codes.h.
#pragma once

#include "atelier/host/packed_codes.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

struct PackedCodesKernels {
  // Blocks of nf4 and fp4 are a power of two of 8 or more values; codes begin at an even address.
  void (*draw)(const PackedCodes& codes, at::Tensor& out);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<PackedCodesKernels> packed_codes_kernels;

}  // namespace atelier::ops
