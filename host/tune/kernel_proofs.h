// Whether kernels of our own are right on a device, and faster than LibTorch's operators in their
// place; and what else a device is asked for once.
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

// Few rows, some samples without any, as wide as one warp reads and as wide as a published
// denoiser's, and widths beside both that fit no packs of 16 bytes.
std::span<const Sizes> small_sizes();
// Blocks of published denoisers of 2, 20 and 14 billion weights.
std::span<const Sizes> model_sizes();

// An operator of kernels of our own, and expressions in which they run, those of the backward pass
// too.
struct KernelProof {
  std::string_view op;  // the name of its KernelTable in sdk/src/ops
  std::vector<Operator> (*cases)(const Sizes&, const Noise&);
  bool is_of_halves = false;                           // there are none of float32
  std::span<const Sizes> (*timed_at)() = model_sizes;  // on a GPU
};
std::span<const KernelProof> kernel_proofs();

// cuDNN's attention, where flash's would run, of heads of one width.
struct AttentionProof {
  KernelProof proof;
  int64_t head_dim;
  bool is_uniform;
};
std::span<const AttentionProof> attention_proofs();

// Blocks of up to so many rows as CUDA graphs, beside the same blocks that are launched kernel by
// kernel: to the bit, and faster.
struct GraphProof {
  KernelProof proof;
  int64_t rows;
};
std::span<const GraphProof> graph_proofs();  // the fewest rows first

// What is measured and chooses nothing: layers of 8 bits (w8a8) beside bfloat16's, and copies
// between the device and pinned memory beside pageable memory.
std::span<const KernelProof> rate_proofs();
inline constexpr std::string_view kFp8Products = "w8a8_fp8", kInt8Products = "w8a8_int8",
                                  kPinnedCopies = "pinned_copies";
// Bytes that a case of kPinnedCopies copies, there and back together, at its timed_at().
int64_t copied_bytes();

// All that a device can be asked for.
std::vector<KernelProof> proofs_for(at::Device device);

// What was found of an operator's kernels.
struct Verdict {
  std::string op;
  std::string problem;      // empty: they are right
  bool is_unknown = false;  // the proof could not be made, by that problem
  // Forward and backward, where they are right, of the expression and sizes that gain least.
  double composed_ms = 0.0, fused_ms = 0.0;
  // They run by default: right, and faster by 3 % or more.
  bool is_on() const { return problem.empty() && fused_ms <= 0.97 * composed_ms; }
};

// Tries every case in every dtype that has kernels at every of `right_at`, and then both forms in
// turn in bfloat16 at every of `timed_at`.
Verdict prove(const KernelProof& proof, std::span<const Sizes> right_at,
              std::span<const Sizes> timed_at, at::Device device);

}  // namespace atelier::tune
