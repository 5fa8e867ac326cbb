// Speed of the fused pointwise operators beside their composed form, in GB/s of tensors read and
// written once.
#include <chrono>
#include <cstdio>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "atelier/ops/pointwise.h"

namespace {

using at::Tensor;
using namespace atelier;

constexpr int64_t kRows = 2304, kWidth = 1024, kHeads = 8;

double best_ms(const std::function<void()>& run) {
  double best = 1e30;
  for (int i = 0; i < 15; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

// `tensors`: how many [kRows, kWidth] are read or written.
void row(const char* name, at::ScalarType dtype, int tensors, const std::function<void()>& run) {
  const double bytes = static_cast<double>(tensors) * kRows * kWidth * c10::elementSize(dtype);
  ops::set_kernels(ops::Kernels::kFused);
  const double fused = best_ms(run);
  ops::set_kernels(ops::Kernels::kComposed);
  const double composed = best_ms(run);
  std::printf("%-28s %-9s fused %7.3f ms %6.1f GB/s   composed %7.3f ms %6.1f GB/s   %5.2fx\n",
              name, toString(dtype), fused, bytes / fused / 1e6, composed, bytes / composed / 1e6,
              composed / fused);
}

}  // namespace

int main() {
  at::NoGradGuard no_grad;
  at::set_num_threads(2);
  at::manual_seed(0);
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    auto noise = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(dtype); };
    const Tensor x = noise({kRows, kWidth}), y = noise({kRows, kWidth});
    const Tensor a = noise({2, kWidth}), b = noise({2, kWidth}), c = noise({2, kWidth});
    const Segments rows = Segments::uniform(2, kRows / 2);
    const Tensor weight = noise({kWidth}), head_weight = noise({kWidth / kHeads});
    const Tensor heads = x.view({kRows, kHeads, kWidth / kHeads});
    const Tensor angle = at::randn({kRows, kWidth / kHeads / 2});
    const Tensor cos = angle.cos(), sin = angle.sin();
    const Tensor image = x.view({1, 48, 48, kWidth}).permute({0, 3, 1, 2});
    row("norm_modulate", dtype, 2, [&] { ops::norm_modulate(x, a, b, rows); });
    row("gate_residual", dtype, 3, [&] { ops::gate_residual(x, y, a, rows); });
    row("gate_residual_norm_modulate", dtype, 4,
        [&] { ops::gate_residual_norm_modulate(x, y, c, a, b, rows); });
    row("rms_norm", dtype, 2, [&] { ops::rms_norm(x, weight); });
    row("norm_rope, interleaved", dtype, 2,
        [&] { ops::norm_rope(heads, head_weight, cos, sin, ops::RopeLayout::kInterleaved); });
    row("norm_rope, halves", dtype, 2,
        [&] { ops::norm_rope(heads, head_weight, cos, sin, ops::RopeLayout::kHalves); });
    row("swiglu", dtype, 3, [&] { ops::swiglu(x, y); });
    row("gelu_tanh", dtype, 2, [&] { ops::gelu_tanh(x); });
    row("channel_norm with SiLU", dtype, 2, [&] { ops::channel_norm(image, weight, true); });
  }
}
