// Runs the kernels on rows on a GPU, on LibTorch's current stream.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/row_device.h"

namespace atelier::ops::cuda {
namespace {

void check(int error) {
  TORCH_CHECK(error == cudaSuccess,
              "CUDA error: ", cudaGetErrorString(static_cast<cudaError_t>(error)));
}

}  // namespace

at::DeviceType row_device() {
  return at::kCUDA;
}

void run_rows(const RowKernel& kernel, Element element, const RowGrid& grid,
              const RowArguments& arguments, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check(kernel.launch(element, grid, arguments, c10::cuda::getCurrentCUDAStream().stream()));
}

void run_totals(const TotalsArguments& arguments, c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  check(atelier_cuda_column_totals(&arguments, c10::cuda::getCurrentCUDAStream().stream()));
}

}  // namespace atelier::ops::cuda
