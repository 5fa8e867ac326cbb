#include "host/cli/ranks.h"

#include "host/device/cuda.h"

namespace atelier::cli {

void choose_gpu(std::string& device, const distributed::Ranks& ranks) {
  if (ranks.is_alone() || (device != "auto" && device != "cuda")) return;
  const int gpus = device::open_cuda().device_count;
  if (gpus > 0) device = "cuda:" + std::to_string(ranks.local_rank % gpus);
}

}  // namespace atelier::cli
