// The door of libatelier_cuda.so. Loading this library loads LibTorch's CUDA half, which registers
// its kernels.
#include <string>

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "atelier/export.h"

// Returns null when CUDA is ready, else why it is not; the text lives as long as the process.
extern "C" ATELIER_API const char* atelier_cuda_open() noexcept {
  static std::string problem;
  try {
    at::globalContext().lazyInitDevice(at::kCUDA);
    return nullptr;
  } catch (const std::exception& e) {
    problem = e.what();
    problem = problem.substr(0, problem.find('\n'));
  } catch (...) {
    problem = "an unknown failure while CUDA is initialised";
  }
  return problem.c_str();
}
