#include "host/cli/process.h"

#include "host/cli/built_kernels.h"
#include "host/device/cuda.h"
#include "host/report/say_once.h"
#include "host/tune/kernel_table.h"

namespace atelier::cli {

void set_up(const flags::ProcessSettings& settings) {
  flags::apply(settings);
  if (!kHasKernels || settings.kernels != ops::Kernels::kAuto || settings.is_deterministic) return;
  const tune::Machine machine = tune::this_machine();
  if (machine.gpus.empty()) return;
  if (const auto table = tune::read_table(tune::cache_folder(), machine)) {
    device::run_by_default(table->on());
    ops::set_proven_attention(tune::attention_of(*table, machine));
  } else {
    report::say_once(
        "note: no kernels of our own are in use on this GPU; atelier tune proves them, once\n");
  }
}

}  // namespace atelier::cli
