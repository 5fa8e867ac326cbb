// Models run on meta tensors, which have shapes and no values: what a run will compute and hold is
// known before a weight is read.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier::ops {

// While one is on a thread's stack, operators on meta tensors allocate what they would on a device
// of kind `like`, and their products are counted, those of backward passes too. The first one gives
// kernels to operators of LibTorch that lack one for meta tensors; one that needs values throws
// Error{kUnsupported}. One at a time on a thread.
class ATELIER_API DryRun {
 public:
  // A convolution, or with `needs_x` or `needs_kernel` its backward pass to these: sizes of its
  // tensors, and how they meet along each axis.
  struct Convolution {
    std::vector<int64_t> x, kernel, stride, padding;
    std::vector<int64_t> dilation = {};  // empty: 1 along each axis
    int64_t groups = 1;
    at::ScalarType dtype = at::kFloat;
    bool has_bias = false, needs_x = false, needs_kernel = false;
  };
  // Bytes that one allocates on the CPU beside what it returns.
  using Scratch = std::function<int64_t(const Convolution& convolution)>;

  // `scratch` is asked where `like` is the CPU; empty: nothing is known of it.
  explicit DryRun(at::DeviceType like, Scratch scratch = {});
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  at::DeviceType like() const { return like_; }

  // Multiplications and additions since construction, two for each pair.
  double product_flops() const { return product_flops_; }      // of matrices and convolutions
  double attention_flops() const { return attention_flops_; }  // of attention, LibTorch's too

  // What the author of code that needs values is told.
  static constexpr const char* kHint =
      "tensors are made on the device of the inputs, and shapes and branches follow from shapes: "
      "see \"Your code also runs on tensors without values\" in docs/plugins.md";

  // Whether there is one on this thread.
  static bool is_on();

  // While one lives, what LibTorch multiplies on its thread is not counted: the operator counts its
  // products itself, as they are on a device.
  class ATELIER_API OwnCount {
   public:
    OwnCount();
    ~OwnCount();
    OwnCount(const OwnCount&) = delete;
    OwnCount& operator=(const OwnCount&) = delete;
  };

  // For operators. Null when there is none on this thread, or `x` is no meta tensor.
  static DryRun* of(const at::Tensor& x);
  void add_product(double flops) { product_flops_ += flops; }
  void add_attention(double flops) { attention_flops_ += flops; }
  // What a convolution on `x` works in: hold it as long as that takes. Undefined: nothing.
  at::Tensor scratch_of(const at::Tensor& x, const Convolution& convolution) const;

 private:
  at::DeviceType like_;
  Scratch scratch_;
  double product_flops_ = 0.0, attention_flops_ = 0.0;
  uint64_t watch_ = 0;  // of LibTorch's products
};

}  // namespace atelier::ops
