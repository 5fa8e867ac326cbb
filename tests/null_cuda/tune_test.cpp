// What is asked of a machine's GPUs before a run, on LibTorch's CUDA half.
#include <algorithm>
#include <cstdlib>

#include "host/tune/kernel_table.h"
#include "null_cuda/cuda_half.h"
#include "null_cuda/runtime.h"
#include "support/files.h"

namespace atelier::tune {

TEST_CASE("What can be proven is known without a context on the GPU", "[null_cuda]") {
  test::cuda_device(0);
  null_cuda::begin_log();
  const std::vector<KernelProof> proofs = proofs_for(at::Device(at::kCUDA, 1));
  CHECK(null_cuda::end_log().empty());
  for (const std::string_view name :
       {std::string_view("swiglu"), graph_proofs().front().proof.op, kFp8Products, kPinnedCopies})
    CHECK(std::ranges::find(proofs, name, &KernelProof::op) != proofs.end());
}

TEST_CASE("Copies have the rate of the table of their kind of GPU", "[null_cuda]") {
  const test::Folder cache;
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  const at::Device second = test::cuda_device(1);
  const std::vector<GpuKind> kinds = kinds_here();
  REQUIRE(kinds.size() == 1);  // both GPUs
  CHECK(copy_bytes_per_second(second) == 0);
  make_writable(cache_folder(), kinds[0]);
  const auto remember = [&](const Verdict& verdict) {
    write_table(cache_folder(), kinds[0], {.verdicts = {verdict}});
  };
  remember({.op = std::string(kPinnedCopies), .problem = {}, .composed_ms = 8, .fused_ms = 2});
  CHECK(copy_bytes_per_second(second) == static_cast<double>(copied_bytes()) / 2e-3);
  remember({.op = std::string(kPinnedCopies), .problem = "nothing was pinned"});
  CHECK(copy_bytes_per_second(second) == 0);
}

}  // namespace atelier::tune
