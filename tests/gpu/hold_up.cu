// A kernel that takes a known time: what is queued behind it begins late.
#include <cuda_runtime.h>

namespace {

__device__ long long now() {
  long long nanoseconds = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

__global__ void pass_time(long long nanoseconds) {
  const long long begin = now();
  while (now() - begin < nanoseconds) {
  }
}

}  // namespace

// Returns the CUDA error, 0 for none.
extern "C" int atelier_hold_up(int device, void* stream, long long nanoseconds) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return error;
  pass_time<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(nanoseconds);
  return cudaGetLastError();
}
