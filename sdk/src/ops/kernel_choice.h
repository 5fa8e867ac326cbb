// Which kernels of an operator run: those that a device registered, by what was proven and what
// was asked for.
#pragma once

#include <array>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier::ops {

// Tensors that kernels do not take run composed.
struct KernelLimits {
  bool takes_float64 = false;
  int64_t widest_row_bytes = 0;  // of a row that is added up; 0: any
};

// What one device has of an operator.
struct KernelEntry {
  const void* kernels = nullptr;
  const KernelLimits* limits = nullptr;
  bool are_proven = false;
};
// By at::DeviceType.
using KernelEntries = std::array<KernelEntry, at::COMPILE_TIME_MAX_DEVICE_TYPES>;

// See KernelTable.
ATELIER_API const void* kernels_taking(const KernelEntries& entries, const at::Tensor& x,
                                       int64_t row_width);
ATELIER_API const void* kernels_in_use(const KernelEntries& entries, const at::Tensor& x,
                                       int64_t row_width);

// The kernels of one operator, by device. `Kernels`: a struct of functions and their KernelLimits,
// `limits`, that lives as long as the process. Arguments have been checked, and results are
// allocated: one that is undefined is not wanted. Tensors are contiguous, but of modulations and
// where a struct says so only the last axis need be dense.
template <typename Kernels>
class KernelTable {
 public:
  // Kernels of the CPU, where it has any, are there from the start, and proven.
  KernelTable() = default;
  explicit KernelTable(const Kernels& cpu) { add(at::kCPU, cpu, /*are_proven=*/true); }

  // Called before other threads run operators. Under Kernels::kFused all kernels run, under
  // Kernels::kAuto those that are proven.
  void add(at::DeviceType device, const Kernels& kernels, bool are_proven) {
    entries_[static_cast<size_t>(device)] = {&kernels, &kernels.limits, are_proven};
  }

  // Whether kernels run on tensors like `x` as things stand; otherwise the composed form does. A
  // dry run is told what its device would do. row_width: of a row that is added up. Throws
  // Error{kUnsupported} where kernels are forced that the device has not.
  bool takes(const at::Tensor& x, int64_t row_width = 0) const {
    return kernels_taking(entries_, x, row_width) != nullptr;
  }

  // Kernels that stand in on `x` for what runs without them: null where there are none, and in a
  // dry run.
  const Kernels* in_use(const at::Tensor& x, int64_t row_width = 0) const {
    return static_cast<const Kernels*>(kernels_in_use(entries_, x, row_width));
  }

  // Runs a kernel of the device that has `x`, its first argument, where takes() held for the
  // operator or for what it is the backward pass of. In a dry run, whose results are allocated as
  // others are, nothing is computed.
  template <typename Kernel, typename... Arguments>
  void run(Kernel Kernels::*kernel, const at::Tensor& x, Arguments&&... others) const {
    if (const Kernels* kernels = of(x)) (kernels->*kernel)(x, others...);
  }

  // Kernels of the device that has `x`; null in a dry run.
  const Kernels* of(const at::Tensor& x) const {
    return static_cast<const Kernels*>(entries_[static_cast<size_t>(x.device().type())].kernels);
  }

 private:
  KernelEntries entries_;
};

}  // namespace atelier::ops
