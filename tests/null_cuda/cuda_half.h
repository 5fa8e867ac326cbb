// LibTorch's CUDA half, opened as the program does.
#pragma once

#include <string>

#include "host/device/cuda.h"
#include "support/catch.h"

namespace atelier::test {

// Makes it this thread's, too.
inline at::Device cuda_device(int index) {
  return device::choose("cuda:" + std::to_string(index));
}

}  // namespace atelier::test
