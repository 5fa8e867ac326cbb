// The door of libatelier_cuda.so to NCCL, which no other library of the program links.
#include <cstdlib>

#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "atelier/export.h"

namespace {

// Peers find out who is lost and end the process; NCCL's watchdog is to end what waits on the GPU,
// and not the process. torchrun has said something else already.
void leave_failures_to_peers() {
  const auto set = [](const char* name, const char* value) {
    setenv(name, value, /*overwrite=*/1);
  };
  set("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2");  // aborts communicators, no more
  set("TORCH_NCCL_ENABLE_MONITORING", "0");     // its heartbeat would abort the process
  set("TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
  set("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0");  // this rank finds them where it computes
}

}  // namespace

// Makes this rank's end of a group that meets at `store`. Throws as LibTorch does.
extern "C" ATELIER_API void atelier_cuda_open_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                                   int rank, int size, int device,
                                                   std::chrono::milliseconds limit,
                                                   c10::intrusive_ptr<c10d::Backend>& backend) {
  leave_failures_to_peers();
  const c10::Device gpu(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  const c10::cuda::CUDAGuard guard(gpu);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = limit;
  auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
  group->setBoundDeviceId(gpu);
  backend = std::move(group);
}
