// Proofs of kernels by this program in a process of its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/tune/tuning.h"

namespace atelier::cli {

// All that can be chosen by its proof, by names of their own as --kernels takes them; and all that
// a device can be asked for.
std::vector<tune::KernelProof> choices();
std::vector<tune::KernelProof> proofs_for(at::Device device);

// Proves `names` here, ";" between them, and writes lines of tune::tune() to stdout. Returns the
// exit code.
int prove_here(const std::string& names, at::Device device);

struct ProofLimits {
  double each_s = 60.0;
  std::optional<double> all_s = {};  // of all of them; nullopt: no limit
};

// Proves all that the device can be asked for. Throws Error{kEnvironment} where no process can be
// started.
tune::KernelTable prove_elsewhere(const std::string& device, const ProofLimits& limits,
                                  const std::function<void(const tune::Verdict&)>& told);

// Tables of these kinds of GPU, made within a minute for those that have none yet, and remembered
// where they can be.
std::vector<tune::KernelTable> prove_once(const std::vector<tune::GpuKind>& kinds, bool is_quiet);

}  // namespace atelier::cli
