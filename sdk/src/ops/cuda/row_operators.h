// The kernels on rows by name, and the door of each.
#pragma once

#include "ops/cuda/column_totals.h"
#include "ops/cuda/row_grid.h"

// X(name, functor).
#define ATELIER_NORM_OPERATORS(X)                   \
  X(norm_modulate, NormModulateAlone)               \
  X(gate_residual_norm_modulate, NormModulateGated) \
  X(rms_scale, RmsScale)                            \
  X(rms_gate_residual_norm_modulate, RmsGateResidualNormModulate)

#define ATELIER_NORM_BACKWARD_OPERATORS(X)        \
  X(norm_modulate_backward, NormModulateBackward) \
  X(rms_scale_backward, RmsScaleBackward)         \
  X(rms_gate_residual_norm_modulate_backward, RmsGateResidualNormModulateBackward)

#define ATELIER_PLAIN_OPERATORS(X)                \
  X(gate_residual, GateResidual)                  \
  X(gate_residual_backward, GateResidualBackward) \
  X(norm_rope, NormRope)                          \
  X(norm_rope_backward, NormRopeBackward)         \
  X(swiglu, Swiglu)                               \
  X(swiglu_backward, SwigluBackward)              \
  X(gelu_tanh, GeluTanh)                          \
  X(gelu_tanh_backward, GeluTanhBackward)

#define ATELIER_CODE_OPERATORS(X)                              \
  X(quantize_rows, QuantizeRows)                               \
  X(gelu_tanh_codes, GeluTanhCodes)                            \
  X(norm_modulate_codes, NormModulateCodes)                    \
  X(gate_residual_norm_modulate_codes, NormModulateGatedCodes) \
  X(draw_codes, DrawCodes)                                     \
  X(scale_sums, ScaleSums)

#define ATELIER_IMAGE_OPERATORS(X)              \
  X(channel_sums, ChannelSums)                  \
  X(scale_channels, ScaleChannels)              \
  X(channel_gradient_sums, ChannelGradientSums) \
  X(channel_gradients, ChannelGradients)

#define ATELIER_OPTIMIZER_OPERATORS(X) X(adamw_8bit, AdamWCodes)

#define ATELIER_ROW_OPERATORS(X)     \
  ATELIER_NORM_OPERATORS(X)          \
  ATELIER_NORM_BACKWARD_OPERATORS(X) \
  ATELIER_PLAIN_OPERATORS(X)         \
  ATELIER_CODE_OPERATORS(X)          \
  ATELIER_IMAGE_OPERATORS(X)         \
  ATELIER_OPTIMIZER_OPERATORS(X)

namespace atelier::ops::cuda {

enum class RowOperator : int {
#define ATELIER_NAME(name, functor) name,
  ATELIER_ROW_OPERATORS(ATELIER_NAME)
#undef ATELIER_NAME
};

}  // namespace atelier::ops::cuda

// Queue the kernel on a stream of the current device; the CUDA error, 0 for none.
extern "C" {
#define ATELIER_DOOR(name, functor)                                                        \
  int atelier_cuda_##name(atelier::ops::cuda::Element, const atelier::ops::cuda::RowGrid*, \
                          const atelier::ops::cuda::RowArguments*, void* stream);
ATELIER_ROW_OPERATORS(ATELIER_DOOR)
#undef ATELIER_DOOR
int atelier_cuda_column_totals(const atelier::ops::cuda::TotalsArguments*, void* stream);
}
