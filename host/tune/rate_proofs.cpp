#include <array>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/ops/pointwise.h"

#include "host/tune/coded_layer.h"
#include "host/tune/kernel_proofs.h"

namespace atelier::tune {
namespace {

using at::Tensor;
using memory::QuantizedKind;

// A layer whose rows and weight are codes where fused kernels run, and in bfloat16 otherwise.
template <QuantizedKind kKind>
std::vector<Operator> products(const Sizes& sizes, const Noise& noise) {
  const Tensor weight = noise({sizes.layer_width, sizes.width}).to(at::kFloat);
  const memory::Quantized codes = memory::quantize(weight, kKind);
  const auto prepare = [codes, weight](const Tensors& in) -> std::function<Traced()> {
    const Tensor x = in[0];
    if (ops::kernels() == ops::Kernels::kFused || x.scalar_type() == at::kDouble)
      return [x, codes] { return Traced{{coded_product(x, codes, /*is_w8a8=*/true)}, {x}}; };
    const Tensor plain = weight.to(x.options().requires_grad(false));
    return [x, plain] { return Traced{{at::linear(x, plain)}, {x}}; };
  };
  return {{.name = "w8a8",
           .inputs = {noise({Segments(sizes.samples).total(), sizes.width})},
           .run = {},
           .prepare = prepare}};
}

// Copied to the device and back: from and to pinned memory where fused kernels run, and pageable
// memory otherwise. The CPU pins nothing.
std::vector<Operator> copies(const Sizes& sizes, const Noise& noise) {
  const auto prepare = [](const Tensors& in) -> std::function<Traced()> {
    const Tensor there = at::empty_like(in[0].detach());
    const bool is_pinned = ops::kernels() == ops::Kernels::kFused && !there.is_cpu();
    const Tensor here =
        at::empty_like(there, there.options().device(at::kCPU).pinned_memory(is_pinned));
    here.copy_(in[0].detach());
    return [there, here] {
      const at::NoGradGuard no_grad;
      Tensor(there).copy_(here, /*non_blocking=*/true);
      Tensor(here).copy_(there, /*non_blocking=*/true);
      return Traced{{there}, {}};
    };
  };
  return {{.name = "copies",
           .inputs = {noise({Segments(sizes.samples).total(), sizes.width})},
           .run = {},
           .prepare = prepare}};
}

constexpr int64_t kCopiedRows = 8192, kCopiedWidth = 4096;

std::span<const Sizes> copied_sizes() {
  static const std::array kCopied = {Sizes{{kCopiedRows}, kCopiedWidth, 0, 1, 2, 1, 1}};
  return kCopied;
}

constexpr std::array kRateProofs = {
    KernelProof{kFp8Products, products<QuantizedKind::kFp8>, /*is_of_halves=*/true},
    KernelProof{kInt8Products, products<QuantizedKind::kInt8>, /*is_of_halves=*/true},
    KernelProof{kPinnedCopies, copies, /*is_of_halves=*/false, copied_sizes},
};

}  // namespace

std::span<const KernelProof> rate_proofs() {
  return kRateProofs;
}

int64_t copied_bytes() {
  constexpr int64_t kBFloat16Bytes = 2, kWays = 2;
  return kCopiedRows * kCopiedWidth * kBFloat16Bytes * kWays;
}

}  // namespace atelier::tune
