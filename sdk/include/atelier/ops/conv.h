// Convolutions on weight handles.
#pragma once

#include <array>

#include "atelier/weight.h"

namespace atelier::ops {

struct ConvOptions {
  int64_t stride = 1;    // on each axis, H and W
  int64_t padding = 0;   // zeros on each side of each axis
  int64_t dilation = 1;  // between the values that a kernel's neighbours meet
  int64_t groups = 1;    // of channels, each with kernels of its own; `in` of them: depthwise
};

// 1-D convolution. x: [B, in, L]; weight [out, in / groups, k]; bias [out] may be null.
//
// Returns [B, out, L'].
// Throws Error{kInvalidArgument} when x and weight do not fit, or x is smaller than the kernel.
ATELIER_API at::Tensor conv1d(const at::Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
                              ConvOptions options = {});

// 2-D convolution. x: [B, in, H, W]; weight [out, in / groups, kh, kw], or [out, in, kt, kh, kw],
// of which the last temporal slice is used: a causal 3-D convolution of a single frame is that.
// bias [out] may be null. On the CPU channels-last tensors are fastest. The slice of a frozen
// weight, and on the CPU its channels-last copy, is made once and kept beside the handle's version.
//
// Returns [B, out, H', W'], channels-last on the CPU.
// Throws Error{kInvalidArgument} when x and weight do not fit, or x is smaller than the kernel.
ATELIER_API at::Tensor conv2d(const at::Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
                              ConvOptions options);

struct Conv3dOptions {
  std::array<int64_t, 3> stride = {1, 1, 1};   // on T, H and W
  std::array<int64_t, 3> padding = {0, 0, 0};  // zeros on each side of T, H and W
};

// 3-D convolution. x: [B, in, T, H, W]; weight [out, in, kt, kh, kw]; bias [out] may be null. A
// causal one is given its kt - 1 earlier frames, or zeros, in x. Memory formats and copies are as
// with conv2d.
//
// Returns [B, out, T', H', W'], channels-last on the CPU.
// Throws Error{kInvalidArgument} when x and weight do not fit, or x is smaller than the kernel.
ATELIER_API at::Tensor conv3d(const at::Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
                              Conv3dOptions options = {});

}  // namespace atelier::ops
