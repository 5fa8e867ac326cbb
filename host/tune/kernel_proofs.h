// Whether kernels of our own are right on a device, and faster than LibTorch's operators in their
// place.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "host/tune/operator_check.h"

namespace atelier::tune {

// What the tensors of a proof are like.
struct Sizes {
  std::vector<int64_t> samples;  // rows of each
  int64_t width;                 // of a row
  int64_t layer_width;           // of what a layer makes of a row
  int64_t heads, head_width;
  int64_t image_side, image_channels;
};

using Noise = std::function<at::Tensor(at::IntArrayRef)>;  // normal values

// An operator of kernels of our own, and expressions in which they run, those of the backward pass
// too.
struct KernelProof {
  std::string_view op;  // the name of its KernelTable in sdk/src/ops
  std::vector<Operator> (*cases)(const Sizes&, const Noise&);
  bool is_of_halves = false;  // there are none of float32
};
std::span<const KernelProof> kernel_proofs();

// cuDNN's attention, where flash's would run, of heads of one width. What its plans cost, once for
// each number of samples, is not counted.
struct AttentionProof {
  KernelProof proof;
  int64_t head_dim;
  bool is_uniform;
};
std::span<const AttentionProof> attention_proofs();

// All that a device can be asked for.
std::vector<KernelProof> proofs_for(at::Device device);

// Few rows, some samples without any, as wide as one warp reads and as wide as a published
// denoiser's, and widths beside both that fit no packs of 16 bytes; and the sizes of that denoiser.
std::span<const Sizes> small_sizes();
const Sizes& model_sizes();

// What was found of an operator's kernels.
struct Verdict {
  std::string op;
  std::string problem;      // empty: they are right
  bool is_unknown = false;  // the proof could not be made, by that problem
  // Forward and backward, where they are right, of the expression that gains least.
  double composed_ms = 0.0, fused_ms = 0.0;
  // They run by default: right, and faster by 3 % or more.
  bool is_on() const { return problem.empty() && fused_ms <= 0.97 * composed_ms; }
};

// Tries every case in every dtype that has kernels at every of `right_at`, and then both forms in
// turn in bfloat16 at `timed_at`.
Verdict prove(const KernelProof& proof, std::span<const Sizes> right_at, const Sizes& timed_at,
              at::Device device);

}  // namespace atelier::tune
