#include "ops/adamw_8bit.h"

namespace atelier::ops {

constinit KernelTable<AdamW8BitKernels> adamw_8bit_kernels("adamw_8bit");

bool has_adamw_8bit(const at::Tensor& leaf) {
  return adamw_8bit_kernels.in_use(leaf) != nullptr;
}

void adamw_8bit(const AdamW8BitStep& step) {
  adamw_8bit_kernels.in_use(step.leaf)->step(step);
}

}  // namespace atelier::ops
