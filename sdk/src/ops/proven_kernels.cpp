#include "atelier/host/proven_kernels.h"

#include <algorithm>
#include <array>

namespace atelier::ops {
namespace {

// An H200, 2026-11-27: docs/benchmarks/2026-11-27_h200.md. gelu_tanh is right there, and slower than
// LibTorch's.
constexpr std::array kProvenKernels = {
    ProvenKernels{"adamw_8bit", 90, 90},
    ProvenKernels{"channel_norm", 90, 90},
    ProvenKernels{"gate_residual", 90, 90},
    ProvenKernels{"gate_residual_norm_modulate", 90, 90},
    ProvenKernels{"group_norm", 90, 90},
    ProvenKernels{"layer_norm", 90, 90},
    ProvenKernels{"norm_modulate", 90, 90},
    ProvenKernels{"norm_rope", 90, 90},
    ProvenKernels{"rms_gate_residual", 90, 90},
    ProvenKernels{"rms_gate_residual_norm_modulate", 90, 90},
    ProvenKernels{"rms_norm", 90, 90},
    ProvenKernels{"rms_norm_modulate", 90, 90},
    ProvenKernels{"row_codes", 90, 90},
    ProvenKernels{"swiglu", 90, 90},
};

}  // namespace

std::span<const ProvenKernels> proven_kernels() {
  return kProvenKernels;
}

bool are_proven(std::string_view op, int capability) {
  return std::ranges::any_of(kProvenKernels, [&](const ProvenKernels& record) {
    return record.op == op && capability >= record.first_capability &&
           capability <= record.last_capability;
  });
}

}  // namespace atelier::ops
