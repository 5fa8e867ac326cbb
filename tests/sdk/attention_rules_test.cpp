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
      {{.capability = 90, .dtype = at::kBFloat16, .head_dim = 128}, kVarlenFlash},
      {{.capability = 90, .dtype = at::kBFloat16, .head_dim = 256}, kVarlenFlash},
      {{.capability = 100, .dtype = at::kHalf, .head_dim = 64}, kVarlenFlash},
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

TEST_CASE("Where it is proven, and nowhere else, cuDNN attends by itself", "[attention_rules]") {
  const std::vector<ProvenAttention> proven = {{kCudnn, 90, 90, 128, /*is_uniform=*/true},
                                               {kCudnn, 90, 109, 96, /*is_uniform=*/false}};
  const auto chosen = [&](int capability, int64_t head_dim, bool is_uniform) {
    return attention_kernel({.capability = capability,
                             .dtype = at::kBFloat16,
                             .head_dim = head_dim,
                             .is_uniform = is_uniform},
                            proven);
  };
  CHECK((chosen(90, 128, true) == kCudnn));
  CHECK((chosen(90, 128, false) == kVarlenFlash));
  CHECK((chosen(100, 128, true) == kVarlenFlash));
  CHECK((chosen(90, 96, true) == kVarlenFlash));
  CHECK((chosen(90, 96, false) == kCudnn));
  CHECK((chosen(100, 96, false) == kCudnn));
  CHECK((chosen(120, 96, false) == kVarlenFlash));

  const AttentionCase hopper = {.capability = 90, .dtype = at::kBFloat16, .head_dim = 128};
  AttentionCase repeated = hopper, merged = hopper, masked = hopper, wide = hopper;
  repeated.must_be_the_same = true;
  merged.is_merged = true;
  masked.is_masked = true;
  wide.dtype = at::kFloat;
  CHECK((attention_kernel(hopper, proven) == kCudnn));
  CHECK((attention_kernel(repeated, proven) == kVarlenFlash));
  CHECK((attention_kernel(merged, proven) == kVarlenFlash));
  CHECK((attention_kernel(masked, proven) == kTiled));
  CHECK((attention_kernel(wide, proven) == kEfficient));
}

TEST_CASE("What is proven counts from when it was said", "[attention_rules]") {
  const AttentionCase wanted = {.capability = 90, .dtype = at::kBFloat16, .head_dim = 128};
  CHECK((attention_kernel(wanted) == kVarlenFlash));
  set_proven_attention({{kCudnn, 90, 90, 128, /*is_uniform=*/true}});
  CHECK((attention_kernel(wanted) == kCudnn));
  CHECK(proven_attention().size() == 1);
  set_proven_attention({});
  CHECK((attention_kernel(wanted) == kVarlenFlash));
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
