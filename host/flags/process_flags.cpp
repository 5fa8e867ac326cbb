#include "host/flags/process_flags.h"

#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

namespace atelier::flags {
namespace {

constexpr int64_t kMostThreads = 4096;

}  // namespace

void add_process_flags(Table& table, ProcessSettings& settings) {
  using enum ops::AttentionBackend;
  table
      .choice("attention", settings.attention,
              {{"auto", kAuto},
               {"flash", kFlash},
               {"efficient", kEfficient},
               {"cudnn", kCudnn},
               {"math", kMath}},
              "forces one implementation of attention")
      .choice("kernels", settings.kernels,
              {{"auto", ops::Kernels::kAuto},
               {"fused", ops::Kernels::kFused},
               {"composed", ops::Kernels::kComposed}},
              "auto: on a GPU those kernels of our own that atelier tune proved there; fused: all "
              "of them; "
              "composed: plain LibTorch operators instead")
      .choice(
          "tf32", settings.tf32, {{"auto", std::nullopt}, {"on", true}, {"off", false}},
          "on a GPU: convolutions of a float32 VAE multiply in TF32, several times as fast, and "
          "keep 10 bits of mantissa of what they multiply; auto: on")
      .flag("deterministic", settings.is_deterministic,
            "on a GPU: the same run gives the same bits, more slowly")
      .number("threads", settings.threads, "of the CPU; 0: one for each core",
              between(0, kMostThreads));
}

namespace {

// The CPU gives the same bits anyway, by other operators than this would ask for.
void make_deterministic() {
  if (!at::hasCUDA()) return;
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // before the first product
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
}

}  // namespace

void apply(const ProcessSettings& settings) {
  if (settings.is_deterministic) make_deterministic();
  at::globalContext().setAllowTF32CuDNN(settings.tf32.value_or(true));
  ops::set_attention_backend(settings.attention);
  ops::set_kernels(settings.kernels);
  if (settings.threads > 0 && settings.threads <= kMostThreads)
    at::set_num_threads(static_cast<int>(settings.threads));
}

}  // namespace atelier::flags
