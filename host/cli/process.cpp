#include "host/cli/process.h"

#include "atelier/host/device_traits.h"

#include "host/cli/built_kernels.h"
#include "host/report/say_once.h"
#include "host/tune/kernel_table.h"

namespace atelier::cli {

void set_up(const flags::ProcessSettings& settings, std::string_view device, bool is_quiet) {
  flags::apply(settings);
  const bool may_be_gpu = device == "auto" || device.starts_with("cuda");
  if (!kHasKernels || !may_be_gpu || settings.is_deterministic) return;
  const std::vector<tune::GpuKind> kinds = tune::kinds_here();
  if (kinds.empty()) return;
  const auto tables = tune::read_tables(tune::cache_folder(), kinds);
  if (tables) {
    if (settings.kernels == ops::Kernels::kAuto)
      ops::set_proven_kernels(at::kCUDA, tune::on_all(*tables));
    ops::set_proven_attention(tune::attention_of(*tables, kinds));
  } else if (settings.kernels == ops::Kernels::kAuto && !is_quiet) {
    report::say_once(
        "note: no kernels of our own are in use on this GPU; atelier tune proves them, once\n");
  }
}

}  // namespace atelier::cli
