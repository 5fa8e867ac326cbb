// Norms of heads and their rotation, of one stream or of two that are joined.
#pragma once

#include "atelier/ops/pointwise.h"
#include "atelier/segments.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

// Where the rows of a stream stand among those of two that are joined sample by sample: row r of
// sample s is row r + before(s) of both.
struct StreamRows {
  Segments rows, others;
  bool is_first;

  // Rows of one stream, which is not joined.
  static StreamRows alone(int64_t rows) { return {Segments({rows}), Segments({0}), true}; }
  int64_t before(int64_t sample) const { return others.offset(is_first ? sample : sample + 1); }
};

// Rows of x may lie apart: only the last axis need be dense.
struct NormRopeKernels {
  using Tensor = at::Tensor;

  // Into the stream's rows of `out`, [M, H, d].
  void (*forward)(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
                  RopeLayout layout, double eps, const StreamRows& stream, Tensor& out);
  // `grad` is that of `out`. x may be undefined without a weight.
  void (*backward)(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& cos,
                   const Tensor& sin, RopeLayout layout, double eps, const StreamRows& stream,
                   Tensor& grad_x, Tensor& grad_weight);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<NormRopeKernels> norm_rope_kernels;

}  // namespace atelier::ops
