// Which kernels of an operator run: those that a device registered, by what was proven and what
// was asked for.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"
#include "atelier/host/device_traits.h"

namespace atelier::ops {

// Tensors that kernels do not take run composed.
struct KernelLimits {
  bool takes_float64 = false;
  int64_t widest_row_bytes = 0;  // of a row that is added up; 0: any
};

// What devices have of one operator, whatever its functions are; see KernelTable.
class ATELIER_API KernelEntries {
 protected:
  constexpr explicit KernelEntries(std::string_view op) : op_(op) {}

  void add(at::DeviceType device, const void* kernels, const KernelLimits& limits);
  const void* taking(const at::Tensor& x, int64_t row_width) const;
  const void* in_use(const at::Tensor& x, int64_t row_width) const;
  const void* of(const at::Tensor& x) const;

 private:
  friend void set_proven_kernels(at::DeviceType device, const std::vector<std::string>& ops);

  struct Entry {
    const void* kernels = nullptr;
    const KernelLimits* limits = nullptr;
    bool are_proven = false;
  };
  std::string_view op_;
  std::array<Entry, at::COMPILE_TIME_MAX_DEVICE_TYPES> entries_ = {};  // by at::DeviceType
};

// The kernels of one operator, by device. `Kernels`: a struct of functions and their KernelLimits,
// `limits`. Arguments have been checked, and results are allocated: one that is undefined is not
// wanted. Tensors are contiguous, but of modulations and where a struct says so only the last axis
// need be dense.
template <typename Kernels>
class KernelTable : KernelEntries {
 public:
  // op: the operator's name among those that are proven.
  constexpr explicit KernelTable(std::string_view op) : KernelEntries(op) {}

  // Whether kernels run on tensors like `x` as things stand; otherwise the composed form does. A
  // dry run is told what its device would do. row_width: of a row that is added up. Throws
  // Error{kUnsupported} where kernels are forced that the device has not.
  bool takes(const at::Tensor& x, int64_t row_width = 0) const {
    return taking(x, row_width) != nullptr;
  }

  // Kernels that stand in on `x` for what runs without them: null where there are none, and in a
  // dry run.
  const Kernels* in_use(const at::Tensor& x, int64_t row_width = 0) const {
    return static_cast<const Kernels*>(KernelEntries::in_use(x, row_width));
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
    return static_cast<const Kernels*>(KernelEntries::of(x));
  }

 private:
  template <typename>
  friend class DeviceKernels;
};

// A device's kernels of an operator, in its table once the library that has them is loaded: a
// static object of the file that defines them. Under Kernels::kFused all kernels run, under
// Kernels::kAuto those of the CPU, which tests prove, and what set_proven_kernels() names.
template <typename Kernels>
class DeviceKernels {
 public:
  DeviceKernels(at::DeviceType device, KernelTable<Kernels>& table, const Kernels& kernels)
      : kernels_(kernels) {
    table.add(device, &kernels_, kernels_.limits);
  }
  DeviceKernels(const DeviceKernels&) = delete;

 private:
  Kernels kernels_;
};

}  // namespace atelier::ops
