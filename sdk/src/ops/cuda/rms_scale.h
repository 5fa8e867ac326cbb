// x / rms(x) * factor, which norms by the root of the mean square and those of channels are made
// of.
#pragma once

#include "ops/cuda/row_call.h"

namespace atelier::ops::cuda {

// What an RMS norm's result is multiplied with: the weight, times what a sample has.
struct RmsFactor {
  at::Tensor weight, by_sample;  // by_sample may be undefined
  bool is_gate;

  void put(RowArguments& arguments, const at::Tensor& x) const;
  // Gradients that are wanted, from the sums over the rows of each sample, [S, D].
  void put_weight_gradient(const at::Tensor& sums, at::Tensor& gradient) const;
  void put_sample_gradient(const at::Tensor& sums, at::Tensor& gradient) const;
};

enum class Style { kPlain, kRounded, kChannel, kChannelSilu };

// `added` may be undefined.
void rms_scale(const at::Tensor& x, const at::Tensor& added, const RmsFactor& factor,
               const Segments& rows, double eps, Style style, at::Tensor& out);

// Returns the sums of the factor [S, D] where they are `wanted`.
at::Tensor rms_scale_backward(const at::Tensor& grad, const at::Tensor& x, const RmsFactor& factor,
                              const Segments& rows, double eps, Style style, bool wanted,
                              at::Tensor& grad_x);

}  // namespace atelier::ops::cuda
