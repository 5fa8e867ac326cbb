// The proofs of kernels, of the kernels of GPUs, which are played on the CPU.
#include "host/tune/kernel_proofs.h"
#include "sdk/cuda/row_player.h"
#include "support/catch.h"

namespace atelier::tune {

TEST_CASE("Kernels of GPUs are right where they are played", "[tune]") {
  const auto sizes = small_sizes().first(1);
  for (const KernelProof& proof : kernel_proofs()) {
    const int64_t before = ops::cuda::played().launches;
    CHECK(prove(proof, sizes, sizes, at::kCPU).problem == "");
    CHECK(ops::cuda::played().launches > before);
  }
}

}  // namespace atelier::tune
