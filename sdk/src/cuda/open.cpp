// The doors of libatelier_cuda.so. Loading this library loads LibTorch's CUDA half, which registers
// its kernels. Each function returns null, or what went wrong; the text lives as long as the
// process.
#include <algorithm>
#include <functional>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include "atelier/export.h"
#include "atelier/host/device_traits.h"

#include "cuda/graph_recorder.h"

namespace {

const char* problem_of(const std::function<void()>& call) noexcept {
  static std::string problem;
  try {
    call();
    return nullptr;
  } catch (const std::exception& e) {
    problem = e.what();
    problem = problem.substr(0, problem.find('\n'));
  } catch (...) {
    problem = "an unknown failure of CUDA";
  }
  return problem.c_str();
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  TORCH_CHECK(cudaDeviceGetAttribute(&value, which, device) == cudaSuccess, "GPU ", device,
              " does not say what it is");
  return value;
}

}  // namespace

extern "C" ATELIER_API const char* atelier_cuda_open() noexcept {
  return problem_of([] {
    at::globalContext().lazyInitDevice(at::kCUDA);
    atelier::ops::register_graph_recorder(at::kCUDA, &atelier::ops::cuda::make_cuda_graph_recorder);
    for (int device = 0;
         device < at::globalContext().getAcceleratorHooksInterface(at::kCUDA).deviceCount();
         ++device) {
      const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
      const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
      atelier::ops::set_compute_capability(static_cast<at::DeviceIndex>(device),
                                           10 * major + minor);
    }
  });
}

// LibTorch's allocator gives no more than `bytes` of the device's memory from now on.
extern "C" ATELIER_API const char* atelier_cuda_limit_memory(int device, int64_t bytes) noexcept {
  return problem_of([&] {
    const auto index = static_cast<c10::DeviceIndex>(device);
    const auto all =
        static_cast<double>(c10::cuda::CUDACachingAllocator::get()->getMemoryInfo(index).second);
    c10::cuda::CUDACachingAllocator::setMemoryFraction(
        std::clamp(static_cast<double>(bytes) / all, 0.0, 1.0), index);
  });
}
