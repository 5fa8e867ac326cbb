// Counts what lets host and device wait for each other, on a device that computes nothing: meta
// tensors.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>

namespace atelier::test {

// Counts the calls of this thread while it lives. One at a time.
class DeviceCalls {
 public:
  DeviceCalls() {
    counts() = {};
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&DeviceCalls::see).needsInputs(true));
  }
  ~DeviceCalls() { at::removeCallback(handle_); }
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  int copies() const { return counts().copies; }  // between host and device
  // How many of those, and of calls that ask for values, what the host waits for.
  int waits() const { return counts().waits; }
  int casts() const { return counts().casts; }  // to another dtype
  // Products of e4m3 codes, and of those the ones whose sums need not be float32.
  int scaled_products() const { return counts().scaled_products; }
  int fast_products() const { return counts().fast_products; }

 private:
  struct Counts {
    int copies = 0, waits = 0, casts = 0, scaled_products = 0, fast_products = 0;
  };
  static Counts& counts() {
    static thread_local Counts counts;
    return counts;
  }

  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& call) {
    const std::string_view name = call.name();
    const auto inputs = call.inputs();
    const auto tensor = [&](size_t i) {
      return i < inputs.size() && inputs[i].isTensor() ? inputs[i].toTensor() : at::Tensor();
    };
    const at::Tensor first = tensor(0), second = tensor(1);
    if (name == "aten::copy_" && first.defined() && second.defined() &&
        first.device() != second.device()) {
      ++counts().copies;
      if (!inputs[2].toBool()) ++counts().waits;
    }
    if (name == "aten::copy_" && first.scalar_type() != second.scalar_type()) ++counts().casts;
    if (name == "aten::_scaled_mm") {
      constexpr size_t kUseFastAccum = 7;
      ++counts().scaled_products;
      counts().fast_products += inputs[kUseFastAccum].toBool();
    }
    const bool asks = name == "aten::_local_scalar_dense" || name == "aten::nonzero" ||
                      name == "aten::equal" || name == "aten::is_nonzero";
    if (asks && first.defined() && !first.is_cpu()) ++counts().waits;
    return nullptr;
  }

  at::CallbackHandle handle_;
};

}  // namespace atelier::test
