#include "atelier/host/attention_rules.h"

#include <algorithm>
#include <array>
#include <utility>

#include "atelier/error.h"

namespace atelier::ops {
namespace {

using enum AttentionKernel;

enum Dtypes : uint8_t { kHalves = 1, kSingle = 2, kDouble = 4, kAllDtypes = 7 };

constexpr int kNewest = 1000;
constexpr int64_t kAnyWidth = 1 << 20;

struct Rule {
  AttentionKernel kernel;
  int first_capability, last_capability;
  uint8_t dtypes;
  int64_t widest_head, head_step;
  bool needs_proof;
  bool can_be_the_same;  // its gradients, when LibTorch is to be deterministic
};

// The fastest first. cuDNN is what LibTorch 2.11 prefers on Hopper and Blackwell's large chips,
// where its kernels are published to be 1.6 times as fast as flash; but it makes a plan for each
// new size.
constexpr std::array kRules = {
    Rule{kCudnn, 90, 109, kHalves, 128, 8, /*needs_proof=*/true, /*can_be_the_same=*/false},
    Rule{kVarlenFlash, 80, kNewest, kHalves, 256, 8, false, true},
    Rule{kEfficient, 50, kNewest, kHalves | kSingle, kAnyWidth, 1, false, true},
    Rule{kMath, 0, kNewest, kAllDtypes, kAnyWidth, 1, false, true},
};

constexpr std::array kItems = {
    std::pair(kCpuFlash, std::string_view("attention.cpu_flash")),
    std::pair(kVarlenFlash, std::string_view("attention.flash")),
    std::pair(kCudnn, std::string_view("attention.cudnn")),
    std::pair(kEfficient, std::string_view("attention.efficient")),
    std::pair(kMath, std::string_view("attention.math")),
    std::pair(kDry, std::string_view("attention.dry")),
    std::pair(kTiled, std::string_view("attention.tiled")),
};

std::vector<ProvenAttention> proven_here;

uint8_t bit_of(at::ScalarType dtype) {
  if (dtype == at::kHalf || dtype == at::kBFloat16) return kHalves;
  return dtype == at::kFloat ? kSingle : kDouble;
}

// Apart from what the kernel is not fastest, or not the same, for.
bool runs(const Rule& rule, const AttentionCase& wanted) {
  return wanted.capability >= rule.first_capability && (rule.dtypes & bit_of(wanted.dtype)) != 0 &&
         wanted.head_dim <= rule.widest_head && wanted.head_dim % rule.head_step == 0;
}

}  // namespace

std::span<const ProvenAttention> proven_attention() {
  return proven_here;
}

void set_proven_attention(std::vector<ProvenAttention> proven) {
  proven_here = std::move(proven);
}

AttentionKernel attention_kernel(const AttentionCase& wanted,
                                 std::span<const ProvenAttention> proven) {
  if (wanted.is_masked) return kTiled;
  const auto is_proven = [&](AttentionKernel kernel) {
    return std::ranges::any_of(proven, [&](const ProvenAttention& record) {
      return record.kernel == kernel && record.head_dim == wanted.head_dim &&
             record.is_uniform == wanted.is_uniform &&
             wanted.capability >= record.first_capability &&
             wanted.capability <= record.last_capability;
    });
  };
  const auto fits = [&](const Rule& rule) {
    return runs(rule, wanted) && wanted.capability <= rule.last_capability &&
           (!wanted.must_be_the_same || rule.can_be_the_same) &&
           (!wanted.is_merged || rule.kernel != kCudnn) &&
           (!rule.needs_proof || is_proven(rule.kernel));
  };
  return std::find_if(kRules.begin(), kRules.end(), fits)->kernel;  // the last one always fits
}

bool can_attend(AttentionKernel kernel, const AttentionCase& wanted) {
  return std::any_of(kRules.begin(), kRules.end(),
                     [&](const Rule& rule) { return rule.kernel == kernel && runs(rule, wanted); });
}

std::string_view attention_item(AttentionKernel kernel) {
  for (const auto& [known, item] : kItems) {
    if (known == kernel) return item;
  }
  throw Error(ErrorCode::kInternal, "attention: a kernel without a name");
}

std::optional<AttentionKernel> attention_kernel_of(std::string_view item) {
  for (const auto& [kernel, known] : kItems) {
    if (known == item) return kernel;
  }
  return std::nullopt;
}

}  // namespace atelier::ops
