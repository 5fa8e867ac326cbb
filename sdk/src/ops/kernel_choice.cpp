#include "ops/kernel_choice.h"

#include <algorithm>
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

// Whether kernels run that are there.
bool runs(bool are_proven) {
  const Kernels choice = chosen_kernels;
  return choice == Kernels::kFused || (choice == Kernels::kAuto && are_proven);
}

// The tables of operators that some device has kernels of.
std::vector<KernelEntries*>& tables() {
  static std::vector<KernelEntries*> all;
  return all;
}

}  // namespace

void set_kernels(Kernels kernels) {
  chosen_kernels = kernels;
}
Kernels kernels() {
  return chosen_kernels;
}

void set_proven_kernels(at::DeviceType device, const std::vector<std::string>& ops) {
  for (KernelEntries* table : tables()) {
    table->entries_[static_cast<size_t>(device)].are_proven =
        std::find(ops.begin(), ops.end(), table->op_) != ops.end();
  }
}

void KernelEntries::add(at::DeviceType device, const void* kernels, const KernelLimits& limits) {
  entries_[static_cast<size_t>(device)] = {kernels, &limits, device == at::kCPU};
  tables().push_back(this);
}

const void* KernelEntries::of(const Tensor& x) const {
  return entries_[static_cast<size_t>(x.device().type())].kernels;
}

const void* KernelEntries::in_use(const Tensor& x, int64_t row_width) const {
  if (x.is_meta()) return nullptr;
  const Entry& entry = entries_[static_cast<size_t>(x.device().type())];
  const bool may_run = entry.kernels != nullptr && runs(entry.are_proven);
  return may_run && is_within(*entry.limits, x, row_width) ? entry.kernels : nullptr;
}

const void* KernelEntries::taking(const Tensor& x, int64_t row_width) const {
  const auto type = x.scalar_type();
  const bool is_known =
      type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
  const Entry& entry = entries_[static_cast<size_t>(kind_of_device(x))];
  if (!is_known || entry.kernels == nullptr || !runs(entry.are_proven)) {
    if (chosen_kernels != Kernels::kFused) return nullptr;
    throw Error(ErrorCode::kUnsupported,
                c10::str("kernels: no fused ones for ", toString(type), " on ", x.device().str()),
                "pass --kernels auto or --kernels composed");
  }
  return is_within(*entry.limits, x, row_width) ? entry.kernels : nullptr;
}

}  // namespace atelier::ops
