#include "atelier/host/attention_rules.h"

#include "atelier/host/device_traits.h"
#include "atelier/host/recompute_scope.h"
#include "atelier/ops/attention.h"

#include "support/tensors.h"

namespace atelier::ops {
namespace {

using enum AttentionKernel;

struct Expected {
  AttentionCase wanted;
  AttentionKernel kernel;
};

}  // namespace

TEST_CASE("Each capability has its attention", "[attention_rules]") {
  const std::vector<Expected> table = {
      {{.capability = 75, .dtype = at::kHalf, .head_dim = 128}, kEfficient},
      {{.capability = 80, .dtype = at::kBFloat16, .head_dim = 128}, kVarlenFlash},
      {{.capability = 86, .dtype = at::kBFloat16, .head_dim = 256}, kVarlenFlash},
      {{.capability = 89, .dtype = at::kBFloat16, .head_dim = 96}, kVarlenFlash},
      {{.capability = 90, .dtype = at::kBFloat16, .head_dim = 128}, kCudnn},
      {{.capability = 90, .dtype = at::kBFloat16, .head_dim = 256}, kVarlenFlash},
      {{.capability = 100, .dtype = at::kHalf, .head_dim = 64}, kCudnn},
      {{.capability = 120, .dtype = at::kBFloat16, .head_dim = 128}, kVarlenFlash},
      {{.capability = 90, .dtype = at::kFloat, .head_dim = 128}, kEfficient},
      {{.capability = 90, .dtype = at::kDouble, .head_dim = 128}, kMath},
      {{.capability = 90, .dtype = at::kBFloat16, .head_dim = 12}, kEfficient},
      {{.capability = 90, .dtype = at::kBFloat16, .head_dim = 512}, kEfficient},
  };
  for (const auto& [wanted, kernel] : table) {
    INFO(wanted.capability << " " << toString(wanted.dtype) << " " << wanted.head_dim);
    CHECK((attention_kernel(wanted) == kernel));
    CHECK(can_attend(kernel, wanted));
    AttentionCase masked = wanted;
    masked.is_masked = true;
    CHECK((attention_kernel(masked) == kTiled));
  }
}

TEST_CASE("Lengths that differ, and gradients to the bit, have flash on Hopper",
          "[attention_rules]") {
  const AttentionCase hopper = {.capability = 90, .dtype = at::kBFloat16, .head_dim = 128};
  AttentionCase packed = hopper, repeated = hopper;
  packed.is_uniform = false;
  repeated.must_be_the_same = true;
  CHECK((attention_kernel(packed) == kVarlenFlash));
  CHECK((attention_kernel(repeated) == kVarlenFlash));
}

TEST_CASE("A forced kernel runs where it can, also where another one is faster",
          "[attention_rules]") {
  const AttentionCase newest = {.capability = 120, .dtype = at::kBFloat16, .head_dim = 128};
  CHECK(can_attend(kCudnn, newest));
  CHECK(can_attend(kEfficient, newest));
  CHECK_FALSE(can_attend(kCudnn, {.capability = 86, .dtype = at::kBFloat16, .head_dim = 128}));
  CHECK_FALSE(can_attend(kVarlenFlash, {.capability = 75, .dtype = at::kHalf, .head_dim = 64}));
  CHECK_FALSE(can_attend(kVarlenFlash, {.capability = 90, .dtype = at::kFloat, .head_dim = 64}));
  CHECK_FALSE(can_attend(kEfficient, {.capability = 90, .dtype = at::kDouble, .head_dim = 64}));
}

TEST_CASE("An item of attention names its kernel", "[attention_rules]") {
  for (const auto kernel : {kCpuFlash, kVarlenFlash, kCudnn, kEfficient, kMath, kDry, kTiled}) {
    const std::string_view item = attention_item(kernel);
    CHECK_THAT(std::string(item), Catch::StartsWith("attention."));
    CHECK((attention_kernel_of(item) == kernel));
  }
  CHECK_FALSE(attention_kernel_of("linear"));
  CHECK_FALSE(attention_kernel_of(""));
}

TEST_CASE("A replay takes the kernel that was recorded", "[attention_rules][recompute]") {
  at::manual_seed(3);
  const at::Tensor q = at::randn({6, 2, 8});
  const Segments rows({6});
  const ActionPlan plan = {Action::kKeep};
  std::vector<KeptOutput> kept;
  at::Tensor first;
  {
    RecomputeScope record(RecomputeScope::Mode::kRecord, plan, kept);
    first = attention(q, q, q, rows);
  }
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].op == "attention.cpu_flash");
  set_attention_backend(AttentionBackend::kMath);  // in between
  {
    RecomputeScope replay(RecomputeScope::Mode::kReplay, plan, kept);
    CHECK(at::equal(attention(q, q, q, rows), first));
  }
  set_attention_backend(AttentionBackend::kAuto);
}

TEST_CASE("A GPU has the compute capability that it was said to have", "[attention_rules]") {
  const at::Device gpu(at::kCUDA, 5);
  CHECK(compute_capability(gpu) == 0);
  set_compute_capability(5, 89);
  CHECK(compute_capability(gpu) == 89);
  CHECK(compute_capability(at::kCPU) == 0);
  set_compute_capability(5, 0);
}

}  // namespace atelier::ops
