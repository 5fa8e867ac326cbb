// LibTorch's CUDA half, opened as the program does.
#pragma once

#include <stdexcept>

#include <ATen/core/Tensor.h>

#include "support/catch.h"

extern "C" const char* atelier_cuda_open() noexcept;

namespace atelier::test {

inline at::Device cuda_device(int index) {
  static const char* const problem = atelier_cuda_open();
  if (problem != nullptr) throw std::runtime_error(problem);
  return {at::kCUDA, static_cast<at::DeviceIndex>(index)};
}

}  // namespace atelier::test
