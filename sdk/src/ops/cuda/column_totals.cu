#include <cuda_runtime.h>

#include "ops/cuda/column_totals.h"

namespace atelier::ops::cuda {
namespace {

__global__ void __launch_bounds__(kWarp* kTotalGroups)
    totals_kernel(const __grid_constant__ TotalsArguments arguments) {
  __shared__ float groups[kWarp][kTotalGroups];
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
  totals_kernel<<<static_cast<unsigned>(total_blocks(*arguments)), kWarp * kTotalGroups, 0,
                  static_cast<cudaStream_t>(stream)>>>(*arguments);
  return cudaGetLastError();
}
