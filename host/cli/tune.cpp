// atelier tune: which kernels of our own are right and faster on the GPUs of this machine.
#include <cstdio>
#include <iostream>

#include "host/cli/built_kernels.h"
#include "host/cli/commands.h"
#include "host/cli/proving.h"
#include "host/device/cuda.h"
#include "host/report/error_line.h"

namespace atelier::cli {
namespace {

// How a verdict is told: whether it is on or faster, and what was timed.
struct VerdictWords {
  const char *yes, *no, *before, *after;
};
VerdictWords words_of(std::string_view op) {
  if (op == tune::kPinnedCopies) return {"faster", "slower", "pageable", "pinned"};
  if (op == tune::kFp8Products || op == tune::kInt8Products)
    return {"faster", "slower", "bfloat16", "8 bits"};
  if (op.starts_with("cudnn_attention")) return {"on", "off", "flash", "cuDNN"};
  if (op.starts_with("cuda_graphs")) return {"on", "off", "launched", "as graphs"};
  return {"on", "off", "composed", "fused"};
}

void print(const tune::Verdict& verdict, bool as_json) {
  if (as_json) {
    std::cout << tune::verdict_line(verdict) << std::endl;
    return;
  }
  if (!verdict.problem.empty()) {
    std::printf("%-7s %-33s: %s\n", verdict.is_unknown ? "unknown" : "WRONG", verdict.op.c_str(),
                report::printable(verdict.problem).c_str());
  } else {
    const auto [yes, no, before, after] = words_of(verdict.op);
    std::printf("%-7s %-33s %8.3f ms %s, %8.3f ms %s\n", verdict.is_on() ? yes : no,
                verdict.op.c_str(), verdict.composed_ms, before, verdict.fused_ms, after);
  }
  std::fflush(stdout);
}

}  // namespace

flags::CommandSpec tune_command() {
  flags::CommandSpec command{
      "tune",
      "Proves kernels of our own on the GPUs of this machine, beside LibTorch's operators in their "
      "place, and remembers those that are right and faster: they run by default from then on."};
  command.flags = {
      {.name = "device",
       .help =
           "auto: one GPU of each kind that is here; another device: proves there, and remembers "
           "nothing",
       .preset = "auto",
       .value_name = "auto|cpu|cuda:N"},
      {.name = "timeout",
       .kind = flags::FlagKind::kReal,
       .help = "seconds that the proof of an operator may take",
       .preset = "60"},
      {.name = "json",
       .kind = flags::FlagKind::kFlag,
       .help = "one JSON object an operator",
       .preset = "false"},
      {.name = "in_process",
       .help = "prove these operators in this process, for debuggers",
       .value_name = "OP;..."}};
  return command;
}

int run_tune(std::span<const std::string> arguments) {
  const flags::CommandSpec command = tune_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  const std::string& device = flags.text("device");
  if (const auto names = flags.find_text("in_process"))
    return prove_here(*names, device::choose(device));
  const bool as_json = flags.flag("json");
  const ProofLimits limits = {.each_s = flags.real("timeout")};
  const auto told = [&](const tune::Verdict& verdict) { print(verdict, as_json); };
  const at::Device chosen = device::choose(device);
  if (device == "auto" && chosen.is_cpu()) {
    std::fprintf(stderr, "nothing to prove: %s\n", device::open_cuda().reason.c_str());
    return 0;
  }
  if (chosen.is_cuda() && !kHasKernels)
    throw Error(ErrorCode::kEnvironment,
                std::string("this build has no CUDA kernels: ") + kKernels);
  if (device != "auto") {
    prove_elsewhere(device, limits, told);
    return 0;
  }
  const std::string folder = tune::cache_folder();
  for (const tune::GpuKind& kind : tune::kinds_here()) {
    tune::make_writable(folder, kind);
    if (!as_json) std::printf("%s:\n", report::printable(kind.name).c_str());
    const tune::KernelTable table =
        prove_elsewhere("cuda:" + std::to_string(kind.index), limits, told);
    tune::write_table(folder, kind, table);
    if (!as_json)
      std::printf("%zu of %zu run by default from now on; remembered in %s\n", table.on().size(),
                  table.choices(), report::printable(tune::table_path(folder, kind)).c_str());
  }
  return 0;
}

}  // namespace atelier::cli
