#include "host/flags/process_flags.h"

#include <ATen/Parallel.h>

#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace atelier::flags {
namespace {

constexpr int64_t kMostThreads = 4096;

ops::AttentionBackend attention_of(const std::string& name) {
  if (name == "flash") return ops::AttentionBackend::kFlash;
  if (name == "efficient") return ops::AttentionBackend::kEfficient;
  if (name == "cudnn") return ops::AttentionBackend::kCudnn;
  if (name == "math") return ops::AttentionBackend::kMath;
  return ops::AttentionBackend::kAuto;
}

}  // namespace

void add_process_flags(Table& table, ProcessSettings& settings) {
  table
      .word("attention", settings.attention, {"auto", "flash", "efficient", "cudnn", "math"},
            "forces one implementation of attention")
      .word("kernels", settings.kernels, {"auto", "composed"},
            "composed: plain LibTorch operators in place of fused ones")
      .number("threads", settings.threads, "of the CPU; 0: one for each core",
              between(0, kMostThreads));
}

void apply(const ProcessSettings& settings) {
  ops::set_attention_backend(attention_of(settings.attention));
  ops::set_kernels(settings.kernels == "composed" ? ops::Kernels::kComposed : ops::Kernels::kAuto);
  if (settings.threads > 0 && settings.threads <= kMostThreads)
    at::set_num_threads(static_cast<int>(settings.threads));
}

}  // namespace atelier::flags
