#include "host/flags/process_flags.h"

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
              {{"auto", ops::Kernels::kAuto}, {"composed", ops::Kernels::kComposed}},
              "composed: plain LibTorch operators in place of fused ones")
      .number("threads", settings.threads, "of the CPU; 0: one for each core",
              between(0, kMostThreads));
}

void apply(const ProcessSettings& settings) {
  ops::set_attention_backend(settings.attention);
  ops::set_kernels(settings.kernels);
  if (settings.threads > 0 && settings.threads <= kMostThreads)
    at::set_num_threads(static_cast<int>(settings.threads));
}

}  // namespace atelier::flags
