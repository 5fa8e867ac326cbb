#include "atelier/host/adamw_8bit.h"

#include "ops/pointwise_kernels.h"

namespace atelier::ops {

bool has_adamw_8bit(const at::Tensor& leaf) {
  const PointwiseKernels* kernels = kernels_in_use(leaf);
  return kernels != nullptr && kernels->adamw_8bit != nullptr;
}

void adamw_8bit(const AdamW8BitStep& step) {
  kernels_in_use(step.leaf)->adamw_8bit(step);
}

}  // namespace atelier::ops
