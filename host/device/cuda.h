// Whether a GPU can be used, and why not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace atelier::device {

struct CudaStatus {
  bool usable = false;
  int device_count = 0;
  std::string driver;  // "580.65.06"; empty where there is no driver
  std::string
      reason;  // one line, why it is not usable: "driver 550.54 found, CUDA 13 needs 580 or newer"
  std::string remedy;  // where the reason does not say it
};

// Opens libatelier_cuda.so (and with it LibTorch's CUDA half) where a driver is present. Call it
// first thing in main(): LibTorch asks for its CUDA hooks once and remembers the answer.
const CudaStatus& open_cuda();

// A function of libatelier_cuda.so by its name. Throws Error{kEnvironment} where the library is not
// open or has none.
void* cuda_function(const char* name);

// What the driver says of a GPU; empty where it does not answer.
struct GpuFacts {
  std::string name;
  uint64_t memory_bytes = 0;
  int capability = 0;   // 90 is 9.0
  int driver_cuda = 0;  // the newest CUDA that the driver knows, 13000 is 13.0
};
GpuFacts gpu_facts(int index);

// What tells this build's libatelier_cuda.so from others: its size and when it was written.
std::string backend_identity();

// What tells a GPU from every other one, whichever of them this process sees.
std::string gpu_identity(int index);

// From now on LibTorch takes no more than `bytes` of a GPU's memory: beyond that it is out of
// memory. Does nothing for other devices.
void limit_memory(at::Device device, int64_t bytes);

// "auto": the first GPU where one is usable, else the CPU; "cpu"; "cuda"; "cuda:1"; or "NAME:1" of
// devices that a library in the program has registered with LibTorch as PrivateUse1, as tests do.
// A GPU becomes this thread's current device: LibTorch opens a context on the first one where a
// thread that has none records an event.
// Throws Error{kInvalidArgument} for another name, and Error{kEnvironment} with the reason when a
// GPU is asked for, or is present, and cannot be used.
at::Device choose(std::string_view name);

}  // namespace atelier::device
