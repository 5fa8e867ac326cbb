// Which implementation of attention runs: a table that can be read, and tested without the devices
// that it is about.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "atelier/export.h"

namespace atelier::ops {

enum class AttentionKernel {
  kCpuFlash,     // grouped keys native
  kVarlenFlash,  // CUDA, all samples in one call, grouped keys native
  kCudnn,        // CUDA, grouped keys native
  kEfficient,    // CUDA, keys repeated
  kMath,
  kDry,    // allocates what the flash kernels do, and computes nothing
  kTiled,  // what the others have not, grouped keys native
};

// What the choice on a CUDA device depends on.
struct AttentionCase {
  int capability = 0;  // 86 is 8.6
  at::ScalarType dtype = at::kFloat;
  int64_t head_dim = 0;
  bool is_masked = false;         // soft cap, window, bias or groups
  bool is_uniform = true;         // all samples have the same lengths
  bool must_be_the_same = false;  // gradients to the bit, each time
  bool is_merged = false;         // with what other keys give, by log-sum-exps
};

// Where a kernel was proven: on GPUs of such capabilities it was right, and faster than those
// behind it.
struct ProvenAttention {
  AttentionKernel kernel;
  int first_capability, last_capability;
  int64_t head_dim;
  bool is_uniform;  // for equal lengths; otherwise for those that differ
};
ATELIER_API std::span<const ProvenAttention> proven_attention();
// Called before other threads attend; what proven_attention() gave is gone then.
ATELIER_API void set_proven_attention(std::vector<ProvenAttention> proven);

// The fastest kernel that can. One that LibTorch has, but does not choose everywhere, only where it
// is among `proven`.
ATELIER_API AttentionKernel attention_kernel(
    const AttentionCase& wanted, std::span<const ProvenAttention> proven = proven_attention());
// Whether `kernel` can at all, on a CUDA device.
ATELIER_API bool can_attend(AttentionKernel kernel, const AttentionCase& wanted);

// The operator's name in what is recorded of a block: "attention.flash".
ATELIER_API std::string_view attention_item(AttentionKernel kernel);
// The kernel of a recorded operator; nullopt for another operator.
ATELIER_API std::optional<AttentionKernel> attention_kernel_of(std::string_view item);

}  // namespace atelier::ops
