#include "host/cli/proving.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <span>

#include "atelier/error.h"

#include "host/cli/child.h"
#include "host/device/cuda.h"
#include "host/optim/adamw_8bit_proof.h"
#include "host/plugins/guard.h"
#include "host/progress/progress.h"

namespace atelier::cli {
namespace {

// The limit of a first run, on a GPU that has no table yet.
constexpr double kFirstProofs_s = 60.0;

std::vector<tune::KernelProof> with_optimizers(std::vector<tune::KernelProof> proofs) {
  proofs.push_back(optim::adamw_8bit_proof());
  return proofs;
}

tune::KernelProof proof_of(const std::string& name, at::Device device) {
  const std::vector<tune::KernelProof> proofs = proofs_for(device);
  const auto found = std::ranges::find(proofs, name, &tune::KernelProof::op);
  if (found == proofs.end())
    throw Error(ErrorCode::kInvalidArgument,
                "--in_process: '" + name + "' is not proven on this device");
  return *found;
}

void tell(const tune::Verdict& verdict) {
  std::cout << tune::verdict_line(verdict) << std::endl;
}

// Returns false where the device may compute nothing more for this process.
bool prove_one(const std::string& name, at::Device device) {
  try {
    const tune::KernelProof proof = proof_of(name, device);
    const auto timed_at = device.is_cpu() ? tune::small_sizes().first(1) : proof.timed_at();
    tell(tune::prove(proof, tune::small_sizes(), timed_at, device));
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    const bool lacks_memory = plugins::out_of_memory().has_value();
    tell({.op = name, .problem = what.substr(0, what.find('\n')), .is_unknown = lacks_memory});
    return lacks_memory;
  }
  return true;
}

}  // namespace

std::vector<tune::KernelProof> choices() {
  const auto kernels = tune::kernel_proofs();
  std::vector<tune::KernelProof> proofs(kernels.begin(), kernels.end());
  for (const tune::AttentionProof& attention : tune::attention_proofs())
    proofs.push_back(attention.proof);
  for (const tune::GraphProof& graphs : tune::graph_proofs()) proofs.push_back(graphs.proof);
  return with_optimizers(std::move(proofs));
}

std::vector<tune::KernelProof> proofs_for(at::Device device) {
  return with_optimizers(tune::proofs_for(device));
}

int prove_here(const std::string& names, at::Device device) {
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(';', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    std::cout << tune::begin_line(name) << std::endl;
    if (!prove_one(name, device)) break;
  }
  return 0;
}

tune::KernelTable prove_elsewhere(const std::string& device, const ProofLimits& limits,
                                  const std::function<void(const tune::Verdict&)>& told) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  std::vector<std::string> names;
  for (const tune::KernelProof& proof : proofs_for(device::choose(device)))
    names.emplace_back(proof.op);
  const auto prove = [&](std::span<const std::string> left,
                         const std::function<void(const std::string&)>& on_line) -> tune::End {
    std::string list;
    for (const std::string& name : left) list += (list.empty() ? "" : ";") + name;
    const std::vector<std::string> words = {"tune", "--device", device, "--in_process", list};
    if (!limits.all_s) {
      const auto status = follow(start_program(words), Limit::kEachLine, limits.each_s, on_line);
      return {.status = status, .stopped_after_s = limits.each_s};
    }
    const std::chrono::duration<double> passed = Clock::now() - begin;
    const auto status =
        follow(start_program(words), Limit::kWhole, *limits.all_s - passed.count(), on_line);
    return {.status = status, .is_time_over = !status};
  };
  return tune::tune(names, prove, told);
}

namespace {

tune::KernelTable prove_kind(const tune::GpuKind& kind, double seconds,
                             progress::Progress& progress) {
  const std::string device = "cuda:" + std::to_string(kind.index);
  const size_t count = proofs_for(device::choose(device)).size();
  progress::Step step(progress, "prove kernels on " + kind.name + ", once",
                      static_cast<int64_t>(count), progress::Unit::kParts);
  tune::KernelTable table =
      prove_elsewhere(device, {.all_s = seconds}, [&](const tune::Verdict&) { step.advance(); });
  step.finish();
  progress.note(std::to_string(table.on().size()) + " of " + std::to_string(table.choices()) +
                " run by default from now on; atelier doctor says which");
  return table;
}

}  // namespace

std::vector<tune::KernelTable> prove_once(const std::vector<tune::GpuKind>& kinds, bool is_quiet) {
  progress::Progress progress(progress::stderr_options(is_quiet));
  const std::string folder = tune::cache_folder();
  std::vector<tune::KernelTable> tables;
  for (const tune::GpuKind& kind : kinds) {
    if (const auto known = tune::read_table(folder, kind)) {
      tables.push_back(*known);
      continue;
    }
    tables.push_back(
        prove_kind(kind, kFirstProofs_s / static_cast<double>(kinds.size()), progress));
    try {
      tune::make_writable(folder, kind);
      tune::write_table(folder, kind, tables.back());
    } catch (const Error& error) {
      progress.warn("what was proven of kernels is not remembered: " + error.message());
    }
  }
  return tables;
}

}  // namespace atelier::cli
