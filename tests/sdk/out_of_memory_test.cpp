#include "atelier/host/out_of_memory.h"

#include "support/tensors.h"

namespace atelier {

TEST_CASE("What CUDA and its libraries say without memory is known", "[out_of_memory]") {
  for (const char* message :
       {"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB "
        "of which 1.31 GiB is free.",
        "CUDA error: out of memory", "CUDA driver error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "GET was unable to find an engine to execute this computation",
        "FIND was unable to find an engine to execute this computation",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 70368744177664 bytes. Error code 12 (Cannot allocate memory)"}) {
    INFO(message);
    CHECK(says_out_of_memory(message));
    const bool is_of_engines = std::string_view(message).find("engine") != std::string_view::npos;
    CHECK(says_out_of_memory(message, /*was_refused=*/false) != is_of_engines);
  }
  CHECK(refused_allocations() == 0);  // there is no GPU, or nothing was asked of it
}

TEST_CASE("Other failures of CUDA are none of memory", "[out_of_memory]") {
  for (const char* message :
       {"CUDA error: an illegal memory access was encountered", "CUDA error: misaligned address",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, "
        "m, n, k)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasGemmEx( handle, opa)`",
        "cuDNN error: CUDNN_STATUS_BAD_PARAM", "CUDA driver error: invalid argument",
        "expected scalar type BFloat16 but found Float", ""}) {
    INFO(message);
    CHECK_FALSE(says_out_of_memory(message));
  }
}

}  // namespace atelier
