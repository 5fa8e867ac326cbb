// atelier tune: which kernels of our own are right and faster on the GPUs of this machine.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "host/cli/built_kernels.h"
#include "host/cli/child.h"
#include "host/cli/commands.h"
#include "host/device/cuda.h"
#include "host/report/error_line.h"
#include "host/tune/tuning.h"

namespace atelier::cli {
namespace {

tune::KernelProof proof_of(const std::string& op, at::Device device) {
  const std::vector<tune::KernelProof> proofs = tune::proofs_for(device);
  const auto found = std::ranges::find(proofs, op, &tune::KernelProof::op);
  if (found == proofs.end())
    throw Error(ErrorCode::kInvalidArgument,
                "--in_process: '" + op + "' is not proven on this device");
  return *found;
}

// The proofs themselves, here.
int prove_here(const std::string& ops, at::Device device) {
  for (size_t begin = 0; begin < ops.size();) {
    const size_t end = std::min(ops.find(';', begin), ops.size());
    const std::string op = ops.substr(begin, end - begin);
    begin = end + 1;
    std::cout << tune::begin_line(op) << std::endl;
    const tune::Sizes& timed_at =
        device.is_cpu() ? tune::small_sizes().front() : tune::model_sizes();
    try {
      const tune::Verdict verdict =
          tune::prove(proof_of(op, device), tune::small_sizes(), timed_at, device);
      std::cout << tune::verdict_line(verdict) << std::endl;
    } catch (const c10::Error& error) {
      const std::string what = error.what_without_backtrace();
      std::cout << tune::verdict_line({op, what.substr(0, what.find('\n'))}) << std::endl;
      return 0;  // a GPU may compute nothing more for this process
    }
  }
  return 0;
}

// In processes of their own.
tune::KernelTable prove_elsewhere(const std::string& device, double seconds,
                                  const std::function<void(const tune::Verdict&)>& told) {
  std::vector<std::string> ops;
  for (const tune::KernelProof& proof : tune::proofs_for(device::choose(device)))
    ops.emplace_back(proof.op);
  const auto prove = [&](std::span<const std::string> left, double limit_s,
                         const std::function<void(const std::string&)>& on_line) {
    std::string list;
    for (const std::string& op : left) list += (list.empty() ? "" : ";") + op;
    const std::vector<std::string> words = {"tune", "--device", device, "--in_process", list};
    return follow(start_program(words), Limit::kEachLine, limit_s, on_line);
  };
  return tune::tune(ops, seconds, prove, told);
}

void print(const tune::Verdict& verdict, bool as_json) {
  if (as_json) {
    std::cout << tune::verdict_line(verdict) << std::endl;
    return;
  }
  if (!verdict.problem.empty()) {
    std::printf("WRONG   %-46s: %s\n", verdict.op.c_str(),
                report::printable(verdict.problem).c_str());
  } else {
    std::printf("%-7s %-46s %8.3f ms composed, %8.3f ms fused\n", verdict.is_on() ? "on" : "off",
                verdict.op.c_str(), verdict.composed_ms, verdict.fused_ms);
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
  if (const auto ops = flags.find_text("in_process"))
    return prove_here(*ops, device::choose(device));
  const bool as_json = flags.flag("json");
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
    prove_elsewhere(device, flags.real("timeout"), told);
    return 0;
  }
  const std::string folder = tune::cache_folder();
  for (const tune::GpuKind& kind : tune::kinds_here()) {
    tune::make_writable(folder, kind);
    if (!as_json) std::printf("%s:\n", report::printable(kind.name).c_str());
    const tune::KernelTable table =
        prove_elsewhere("cuda:" + std::to_string(kind.index), flags.real("timeout"), told);
    tune::write_table(folder, kind, table);
    if (!as_json)
      std::printf("%zu of %zu run by default from now on; remembered in %s\n", table.on().size(),
                  table.verdicts.size(), report::printable(tune::table_path(folder, kind)).c_str());
  }
  return 0;
}

}  // namespace atelier::cli
