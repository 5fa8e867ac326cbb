#include "ops/kernel_choice.h"

#include <atomic>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/dry_run.h"
#include "atelier/ops/pointwise.h"

namespace atelier::ops {
namespace {

using at::Tensor;

std::atomic<Kernels> chosen_kernels{Kernels::kAuto};

// Where `x` is, or would be if this were no dry run.
at::DeviceType kind_of_device(const Tensor& x) {
  const DryRun* dry = DryRun::of(x);
  return dry != nullptr ? dry->like() : x.device().type();
}

bool is_within(const KernelLimits& limits, const Tensor& x, int64_t row_width) {
  const bool is_narrow =
      limits.widest_row_bytes == 0 || row_width * x.element_size() <= limits.widest_row_bytes;
  return is_narrow && (limits.takes_float64 || x.scalar_type() != at::kDouble);
}

// Null unless kernels of this entry run.
const void* chosen(const KernelEntry& entry) {
  const Kernels choice = chosen_kernels;
  const bool runs = choice == Kernels::kFused || (choice == Kernels::kAuto && entry.are_proven);
  return runs ? entry.kernels : nullptr;
}

}  // namespace

void set_kernels(Kernels kernels) {
  chosen_kernels = kernels;
}
Kernels kernels() {
  return chosen_kernels;
}

const void* kernels_in_use(const KernelEntries& entries, const Tensor& x, int64_t row_width) {
  if (x.is_meta()) return nullptr;
  const KernelEntry& entry = entries[static_cast<size_t>(x.device().type())];
  const void* kernels = chosen(entry);
  return kernels != nullptr && is_within(*entry.limits, x, row_width) ? kernels : nullptr;
}

const void* kernels_taking(const KernelEntries& entries, const Tensor& x, int64_t row_width) {
  const auto type = x.scalar_type();
  const bool is_known =
      type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
  const KernelEntry& entry = entries[static_cast<size_t>(kind_of_device(x))];
  const void* kernels = is_known ? chosen(entry) : nullptr;
  if (kernels == nullptr) {
    if (chosen_kernels != Kernels::kFused) return nullptr;
    throw Error(ErrorCode::kUnsupported,
                c10::str("kernels: no fused ones for ", toString(type), " on ", x.device().str()),
                "pass --kernels auto or --kernels composed");
  }
  return is_within(*entry.limits, x, row_width) ? kernels : nullptr;
}

}  // namespace atelier::ops
