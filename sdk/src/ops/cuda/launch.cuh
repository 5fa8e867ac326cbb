// How kernels are launched: without <<<...>>>, which is not C++, so that the host's compiler takes .cu
// files, too. Tests give it a cuda_runtime.h that plays kernels on the CPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Stands behind each declaration of shared memory, which a block finds uninitialized: where kernels
// are played, it is filled with NaN.
#if defined(__CUDACC__)
#define ATELIER_UNINITIALIZED(shared)
#else
#define ATELIER_UNINITIALIZED(shared) play_uninitialized(&(shared), sizeof(shared))
#endif

namespace atelier::ops::cuda {

// Queues the kernel on a stream of the current device; the CUDA error, 0 for none.
template <typename... Arguments>
int queue_kernel(void (*kernel)(Arguments...), int64_t blocks, int threads, void* stream,
                 const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchKernelEx(&config, kernel, arguments...);
  return cudaGetLastError();
}

}  // namespace atelier::ops::cuda
