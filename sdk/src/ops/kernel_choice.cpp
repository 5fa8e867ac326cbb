// Which kernels run: those that a device registered, by what was proven and what was asked for.
#include <array>
#include <atomic>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/dry_run.h"

#include "ops/pointwise_kernels.h"

namespace atelier::ops {
namespace {

using at::Tensor;

std::atomic<Kernels> chosen_kernels{Kernels::kAuto};

struct Registered {
  std::atomic<const PointwiseKernels*> kernels{nullptr}, proven{nullptr};
};

struct KernelTable {
  std::array<Registered, at::COMPILE_TIME_MAX_DEVICE_TYPES> devices;
  KernelTable() {
    Registered& cpu = devices[static_cast<size_t>(at::kCPU)];
    cpu.kernels = cpu.proven = &cpu::pointwise_kernels;
  }
};

Registered& registered(at::DeviceType device) {
  static KernelTable table;
  return table.devices[static_cast<size_t>(device)];
}

// Where `x` is, or would be if this were no dry run.
at::DeviceType kind_of_device(const Tensor& x) {
  const DryRun* dry = DryRun::of(x);
  return dry != nullptr ? dry->like() : x.device().type();
}

}  // namespace

void set_kernels(Kernels kernels) {
  chosen_kernels = kernels;
}
Kernels kernels() {
  return chosen_kernels;
}

void register_pointwise_kernels(at::DeviceType device, const PointwiseKernels* kernels,
                                const PointwiseKernels* proven) {
  registered(device).kernels = kernels;
  registered(device).proven = proven;
}

const PointwiseKernels* kernels_in_use(const Tensor& x) {
  const Kernels choice = chosen_kernels;
  if (choice == Kernels::kComposed || x.is_meta()) return nullptr;
  const Registered& entry = registered(x.device().type());
  return choice == Kernels::kFused ? entry.kernels : entry.proven;
}

const PointwiseKernels* kernels_taking(const Tensor& x, int64_t norm_width) {
  const Kernels choice = chosen_kernels;
  if (choice == Kernels::kComposed) return nullptr;
  const auto type = x.scalar_type();
  const bool known =
      type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
  const Registered& entry = registered(kind_of_device(x));
  const bool is_forced = choice == Kernels::kFused;
  const PointwiseKernels* kernels = is_forced ? entry.kernels : entry.proven;
  if (!known || kernels == nullptr) {
    if (!is_forced) return nullptr;
    throw Error(ErrorCode::kUnsupported,
                c10::str("kernels: no fused ones for ", toString(type), " on ", x.device().str()),
                "pass --kernels auto or --kernels composed");
  }
  const bool is_narrow =
      kernels->widest_row_bytes == 0 || norm_width * x.element_size() <= kernels->widest_row_bytes;
  return is_narrow && (type != at::kDouble || kernels->takes_float64) ? kernels : nullptr;
}

const PointwiseKernels& kernels_for(const Tensor& x) {
  if (x.is_meta()) return meta::pointwise_kernels;
  return *registered(x.device().type()).kernels.load();
}

}  // namespace atelier::ops
