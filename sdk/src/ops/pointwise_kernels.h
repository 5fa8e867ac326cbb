// The fused kernels of one kind of device, as ops/pointwise.h calls them.
#pragma once

#include <array>

#include "atelier/host/adamw_8bit.h"
#include "atelier/host/weight_state.h"
#include "atelier/ops/pointwise.h"

namespace atelier::ops {

// What an operator gives, and the same as codes.
struct CodedRows {
  at::Tensor rows;
  RowCodes codes;
};

// Where the rows of a stream stand among those of two that are joined sample by sample: row r of
// sample s is row r + before(s) of both.
struct StreamRows {
  Segments rows, others;
  bool is_first;

  // Rows of one stream, which is not joined.
  static StreamRows alone(int64_t rows) { return {Segments({rows}), Segments({0}), true}; }
  int64_t before(int64_t sample) const { return others.offset(is_first ? sample : sample + 1); }
};

// An operator that is null runs composed; those that its backward pass calls are set with it, here
// and in the operators that it joins. Arguments have been checked. Tensors are contiguous, but of
// modulations, of norm_rope's x and of swiglu's inputs only the last axis need be dense.
// `modulation`, `gate_grad` and `weight_grad` say whether those gradients are wanted; they are
// undefined otherwise, and have the dtypes of what they belong to.
struct PointwiseKernels {
  using Tensor = at::Tensor;

  Tensor (*norm_modulate)(const Tensor& x, const Tensor& shift, const Tensor& scale,
                          const Segments& rows, double eps);
  // {x, shift, scale}. `added`, when defined, is added to the gradient of x.
  std::array<Tensor, 3> (*norm_modulate_backward)(const Tensor& grad, const Tensor& x,
                                                  const Tensor& scale, const Tensor& added,
                                                  const Segments& rows, double eps,
                                                  bool modulation);

  Tensor (*gate_residual)(const Tensor& x, const Tensor& y, const Tensor& gate,
                          const Segments& rows);
  // {y, gate}; that of x is `grad`. y may be undefined unless `gate_grad`.
  std::array<Tensor, 2> (*gate_residual_backward)(const Tensor& grad, const Tensor& y,
                                                  const Tensor& gate, const Segments& rows,
                                                  bool gate_grad);

  // {x + gate * y, its norm_modulate}
  std::array<Tensor, 2> (*gate_residual_norm_modulate)(const Tensor& x, const Tensor& y,
                                                       const Tensor& gate, const Tensor& shift,
                                                       const Tensor& scale, const Segments& rows,
                                                       double eps);

  // x: [..., D]; weight and bias of any dtype
  Tensor (*layer_norm)(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
  // {x, weight, bias}
  std::array<Tensor, 3> (*layer_norm_backward)(const Tensor& grad, const Tensor& x,
                                               const Tensor& weight, double eps, bool weight_grad);

  // x: [..., D]
  Tensor (*rms_norm)(const Tensor& x, const Tensor& weight, double eps);
  // {x, weight}
  std::array<Tensor, 2> (*rms_norm_backward)(const Tensor& grad, const Tensor& x,
                                             const Tensor& weight, double eps, bool weight_grad);

  // `scale` and `gate` of these may be undefined.
  Tensor (*rms_norm_modulate)(const Tensor& x, const Tensor& weight, const Tensor& scale,
                              const Segments& rows, double eps);
  // {x, weight, scale}
  std::array<Tensor, 3> (*rms_norm_modulate_backward)(const Tensor& grad, const Tensor& x,
                                                      const Tensor& weight, const Tensor& scale,
                                                      const Segments& rows, double eps,
                                                      bool weight_grad, bool scale_grad);
  Tensor (*rms_gate_residual)(const Tensor& x, const Tensor& y, const Tensor& weight,
                              const Tensor& gate, const Segments& rows, double eps);
  // {y, weight, gate}; that of x is `grad`.
  std::array<Tensor, 3> (*rms_gate_residual_backward)(const Tensor& grad, const Tensor& y,
                                                      const Tensor& weight, const Tensor& gate,
                                                      const Segments& rows, double eps,
                                                      bool weight_grad, bool gate_grad);
  // {the residual, its rms_norm_modulate}
  std::array<Tensor, 2> (*rms_gate_residual_norm_modulate)(const Tensor& x, const Tensor& y,
                                                           const Tensor& weight, const Tensor& gate,
                                                           const Tensor& next_weight,
                                                           const Tensor& scale,
                                                           const Segments& rows, double eps);
  // {x, y, weight, gate, next_weight, scale}. `grad_sum` may be undefined. `wanted`: of the last
  // four.
  std::array<Tensor, 6> (*rms_gate_residual_norm_modulate_backward)(
      const Tensor& grad_sum, const Tensor& grad, const Tensor& x, const Tensor& y,
      const Tensor& weight, const Tensor& gate, const Tensor& next_weight, const Tensor& scale,
      const Segments& rows, double eps, std::array<bool, 4> wanted);

  // Into the stream's rows of `out`, [M, H, d].
  void (*norm_rope)(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
                    RopeLayout layout, double eps, const StreamRows& stream, Tensor& out);
  // {x, weight}; `grad` is that of `out`. x may be undefined without a weight.
  std::array<Tensor, 2> (*norm_rope_backward)(const Tensor& grad, const Tensor& x,
                                              const Tensor& weight, const Tensor& cos,
                                              const Tensor& sin, RopeLayout layout, double eps,
                                              const StreamRows& stream, bool weight_grad);

  // [N, D]
  Tensor (*swiglu)(const Tensor& gate, const Tensor& up);
  std::array<Tensor, 2> (*swiglu_backward)(const Tensor& grad, const Tensor& gate,
                                           const Tensor& up);
  Tensor (*gelu_tanh)(const Tensor& x);
  Tensor (*gelu_tanh_backward)(const Tensor& grad, const Tensor& x);

  // x: channels last, [..., C]
  Tensor (*channel_norm)(const Tensor& x, const Tensor& gamma, bool silu);
  // {x, gamma}
  std::array<Tensor, 2> (*channel_norm_backward)(const Tensor& grad, const Tensor& x,
                                                 const Tensor& gamma, bool silu, bool gamma_grad);

  // What else runs composed: float64, and norms of rows with more bytes than this; 0: none.
  bool takes_float64;
  int64_t widest_row_bytes;

  // Kernels below stand in for what runs without them and give the same bits, but for group_norm.
  // rows: [N, C], the pixels of images of one size, without float64; weight and bias of any dtype.
  Tensor (*group_norm)(const Tensor& rows, const Tensor& weight, const Tensor& bias,
                       const Segments& images, int64_t groups, double eps, bool silu) = nullptr;
  // {rows, weight, bias}, those that are `wanted`.
  std::array<Tensor, 3> (*group_norm_backward)(const Tensor& grad, const Tensor& rows,
                                               const Tensor& weight, const Tensor& bias,
                                               const Segments& images, int64_t groups, double eps,
                                               bool silu, std::array<bool, 3> wanted) = nullptr;

  // Rows [N, D] of no more bytes than `widest_codes_bytes`, as codes of int8 or e4m3. `factor`,
  // float32 [D], by which they are multiplied first, may be undefined.
  RowCodes (*quantize_rows)(const Tensor& rows, const Tensor& factor,
                            at::ScalarType type) = nullptr;
  // What the operator of that name gives, and codes of it; of the gated one behind the sum.
  CodedRows (*norm_modulate_codes)(const Tensor& x, const Tensor& shift, const Tensor& scale,
                                   const Segments& rows, double eps, at::ScalarType type) = nullptr;
  std::pair<Tensor, CodedRows> (*gate_residual_norm_modulate_codes)(
      const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& shift,
      const Tensor& scale, const Segments& rows, double eps, at::ScalarType type) = nullptr;
  CodedRows (*gelu_tanh_codes)(const Tensor& x, at::ScalarType type) = nullptr;
  // The values of codes [N, D], rounded once.
  Tensor (*draw_codes)(const RowCodes& codes, at::ScalarType dtype) = nullptr;
  // Puts int32 `sums` [N, D], times the scales of rows and columns, into `out`, dense rows; a bias
  // [D] of its dtype, which may be undefined, is added to what was rounded.
  void (*scale_sums)(const Tensor& sums, const Tensor& row_scales, const Tensor& column_scales,
                     const Tensor& bias, Tensor& out) = nullptr;
  int64_t widest_codes_bytes = 0;

  // See atelier/host/adamw_8bit.h.
  void (*adamw_8bit)(const AdamW8BitStep& step) = nullptr;
};

// Kernels of the CPU are there from the start; a device library registers its own when it is
// loaded. Under Kernels::kFused all `kernels` run, under Kernels::kAuto the operators that `proven`
// has, where the others are null. Both live as long as the process.
ATELIER_API void register_pointwise_kernels(at::DeviceType device, const PointwiseKernels* kernels,
                                            const PointwiseKernels* proven);

// The kernels that may run on tensors like `x` as things stand; null: none.
const PointwiseKernels* kernels_in_use(const at::Tensor& x);

// Kernels for the pointwise operators, whose kernels a dry run has, too: null also where they do
// not take the dtype of `x`, or a norm of rows of this width. Throws Error{kUnsupported} where
// kernels are forced that the device has not.
const PointwiseKernels* kernels_taking(const at::Tensor& x, int64_t norm_width);

// Whether the fused kernel of an operator takes `x`; otherwise the composed form runs. Operators
// with a norm say how wide it is.
template <typename Kernel>
bool is_fused(const at::Tensor& x, Kernel PointwiseKernels::*kernel, int64_t norm_width = 0) {
  const PointwiseKernels* kernels = kernels_taking(x, norm_width);
  return kernels != nullptr && kernels->*kernel != nullptr;
}

// Kernels that run on `x` where is_fused().
const PointwiseKernels& kernels_for(const at::Tensor& x);

namespace cpu {
extern const PointwiseKernels pointwise_kernels;
}
namespace meta {
extern const PointwiseKernels pointwise_kernels;
}

}  // namespace atelier::ops
