#include "host/cli/process_flags.h"

#include <ATen/Parallel.h>

#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace atelier::cli {
namespace {

ops::AttentionBackend attention_of(const std::string& name) {
  if (name == "flash") return ops::AttentionBackend::kFlash;
  if (name == "efficient") return ops::AttentionBackend::kEfficient;
  if (name == "cudnn") return ops::AttentionBackend::kCudnn;
  if (name == "math") return ops::AttentionBackend::kMath;
  return ops::AttentionBackend::kAuto;
}

}  // namespace

void apply_process_flags(const std::string& attention, const std::string& kernels, int64_t threads,
                         report::Problems& problems) {
  ops::set_attention_backend(attention_of(attention));
  ops::set_kernels(kernels == "composed" ? ops::Kernels::kComposed : ops::Kernels::kAuto);
  if (threads < 0 || threads > 4096) {
    problems.add("--threads: " + std::to_string(threads) + " is outside [0, 4096]");
  } else if (threads > 0) {
    at::set_num_threads(static_cast<int>(threads));
  }
}

}  // namespace atelier::cli
