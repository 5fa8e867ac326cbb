#include "ops/cuda/column_totals.h"
#include "ops/cuda/launch.cuh"

namespace atelier::ops::cuda {
namespace {

__global__ void __launch_bounds__(kWarp* kTotalGroups)
    totals_kernel(const __grid_constant__ TotalsArguments arguments) {
  __shared__ float groups[kWarp][kTotalGroups];
  ATELIER_UNINITIALIZED(groups);
  const TotalPlace place(arguments, blockIdx.x, threadIdx.x);
  groups[threadIdx.x % kWarp][place.group] = total_of_group(arguments, place);
  __syncthreads();
  if (place.group == 0) store_total(arguments, place, groups[threadIdx.x]);
}

}  // namespace
}  // namespace atelier::ops::cuda

extern "C" int atelier_cuda_column_totals(const atelier::ops::cuda::TotalsArguments* arguments,
                                          void* stream) {
  using namespace atelier::ops::cuda;
  return queue_kernel(totals_kernel, total_blocks(*arguments), kWarp * kTotalGroups, stream,
                      *arguments);
}
