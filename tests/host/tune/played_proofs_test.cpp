// The proofs of kernels, of the kernels of GPUs, which are played on the CPU.
#include "host/tune/kernel_proofs.h"
#include "ops/cuda/register_kernels.h"
#include "sdk/cuda/row_player.h"
#include "support/catch.h"

namespace atelier::tune {

TEST_CASE("Kernels of GPUs are right where they are played", "[tune]") {
  // In this program they are the fused kernels of the CPU.
  ops::cuda::register_kernels(at::kCPU, [](std::string_view) { return true; });
  const Sizes sizes = small_sizes().front();
  for (const KernelProof& proof : kernel_proofs()) {
    const int64_t before = ops::cuda::played().launches;
    CHECK(prove(proof, {&sizes, 1}, sizes, at::kCPU).problem == "");
    CHECK(ops::cuda::played().launches > before);
  }
}

}  // namespace atelier::tune
