// CUDA's words, for a compiler of C++ that is given kernels as they are. What these do is a
// player's: sdk/cuda/kernel_player.cpp runs each lane as a fiber, sdk/cuda/kernel_threads.cpp as a
// thread.
#pragma once

#include <cstddef>
#include <functional>
#include <source_location>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static  // blocks are played one after another
#define __grid_constant__
#define __maxnreg__(registers)
#define __launch_bounds__(threads)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
extern constinit thread_local dim3 threadIdx, blockIdx;
inline constexpr unsigned warpSize = 32;

// `place` is where a kernel calls them.
void __syncthreads(std::source_location place = std::source_location::current());
float __shfl_xor_sync(unsigned mask, float value, int lane_mask,
                      std::source_location place = std::source_location::current());

// Shared memory that a block has come to, and that it finds uninitialized.
void play_uninitialized(void* shared, size_t bytes);

// Runs `kernel` for each lane of each block, which `threadIdx` and `blockIdx` name.
void play(unsigned blocks, unsigned threads, const std::function<void()>& kernel);

using cudaStream_t = void*;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream;
};
template <typename... Parameters, typename... Arguments>
void cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                        const Arguments&... arguments) {
  play(config->gridDim.x, config->blockDim.x, [&] { kernel(arguments...); });
}
inline int cudaGetLastError() {
  return 0;
}
