// Cheap work fused into few operators. Each saves only its inputs for the backward pass and has a
// hand-written backward.
//
// Shape letters: N packed rows, S samples (rows packed by Segments), D width, H heads, d head
// width. Reductions are in float32 (float64 for float64 inputs), results in the dtype of x.
// Modulation tensors (shift, scale, gate) have x's dtype, or are float32 beside an x of 16 bits.
#pragma once

#include <string_view>
#include <tuple>

#include "atelier/segments.h"

namespace atelier::ops {

// kAuto: fused kernels where they are proven on this device. kComposed: the same from plain
// LibTorch operators.
enum class Kernels { kAuto, kComposed, kFused };
ATELIER_API void set_kernels(Kernels kernels);
ATELIER_API Kernels kernels();

// LayerNorm without affine, then modulated: (x - mean) / sqrt(var + eps) * (1 + scale) + shift.
// x: [N, D]; shift, scale: [S, D] of one dtype, one row per sample, may be strided views; shift may
// be undefined: without it. Returns [N, D].
ATELIER_API at::Tensor norm_modulate(const at::Tensor& x, const at::Tensor& shift,
                                     const at::Tensor& scale, const Segments& rows,
                                     double eps = 1e-6);

// x + gate * y. x, y: [N, D]; gate: [S, D]. Returns [N, D].
ATELIER_API at::Tensor gate_residual(const at::Tensor& x, const at::Tensor& y,
                                     const at::Tensor& gate, const Segments& rows);

// gate_residual and the norm_modulate of its result: {x + gate * y, modulated}. One pass over
// memory.
ATELIER_API std::tuple<at::Tensor, at::Tensor> gate_residual_norm_modulate(
    const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate, const at::Tensor& shift,
    const at::Tensor& scale, const Segments& rows, double eps = 1e-6);

// (x - mean) / sqrt(var + eps) * weight + bias over the last axis. x: [..., D]; weight, bias: [D]
// of one dtype, which are not rounded to x's. Returns the shape of x.
ATELIER_API at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, double eps = 1e-5);

// x / sqrt(mean(x²) + eps), cast to the dtype of x, times weight. x: [..., D]; weight: [D]. Returns
// the shape of x.
ATELIER_API at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps = 1e-6);

// rms_norm(x, weight) * (1 + scale). x: [N, D]; weight: [D]; scale: [S, D], or undefined: without
// it. Returns [N, D].
ATELIER_API at::Tensor rms_norm_modulate(const at::Tensor& x, const at::Tensor& weight,
                                         const at::Tensor& scale, const Segments& rows,
                                         double eps = 1e-6);

// x + tanh(gate) * rms_norm(y, weight). x, y: [N, D]; weight: [D]; gate: [S, D], or undefined:
// without it. Returns [N, D].
ATELIER_API at::Tensor rms_gate_residual(const at::Tensor& x, const at::Tensor& y,
                                         const at::Tensor& weight, const at::Tensor& gate,
                                         const Segments& rows, double eps = 1e-6);

// rms_gate_residual and the rms_norm_modulate of its result, with `next_weight` and `scale`: both.
// One pass over memory; it saves what the first of them saves.
ATELIER_API std::tuple<at::Tensor, at::Tensor> rms_gate_residual_norm_modulate(
    const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight, const at::Tensor& gate,
    const at::Tensor& next_weight, const at::Tensor& scale, const Segments& rows,
    double eps = 1e-6);

// Pairs that are rotated together: channels (2i, 2i + 1), or (i, i + d / 2).
enum class RopeLayout { kInterleaved, kHalves };

// Per-head RMS norm (when `weight` is defined, [d]) and rotary embedding in float32.
// x: [N, H, d]; cos, sin: float32 [N, d / 2]. (a, b) becomes (a cos - b sin, a sin + b cos).
// Returns [N, H, d].
ATELIER_API at::Tensor norm_rope(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& cos, const at::Tensor& sin, RopeLayout layout,
                                 double eps = 1e-6);

// What norm_rope() takes of one of two streams that attend together, and the samples of its rows.
struct RopeStream {
  at::Tensor x, weight, cos, sin;
  Segments rows;
};

// norm_rope() of two streams of one dtype, H and d, each written where join_rows() would put it:
// without a tensor for either and a copy of both. Their gradients read that of the result in place.
// Returns [Na + Nb, H, d].
ATELIER_API at::Tensor joined_norm_rope(const RopeStream& a, const RopeStream& b, RopeLayout layout,
                                        double eps = 1e-6);

// silu(gate) * up, same shapes. Returns that shape.
ATELIER_API at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// GELU with the tanh approximation.
ATELIER_API at::Tensor gelu_tanh(const at::Tensor& x);

// GroupNorm, then SiLU when `silu`: each sample's channels in `groups` equal groups, each group
// with mean 0 and variance 1, then times weight plus bias by channel. x: [B, C, H, W]; weight,
// bias: [C]. A GPU may have kernels for images whose channels lie side by side; all else is
// LibTorch's. Returns the shape and memory format of x.
ATELIER_API at::Tensor group_norm(const at::Tensor& x, const at::Tensor& weight,
                                  const at::Tensor& bias, int64_t groups, double eps, bool silu);

// x / max(‖x‖₂ over channels, 1e-12) * sqrt(C) * gamma, then SiLU when `silu`. x: [B, C, H, W],
// channels-last on the CPU; gamma: [C]. Returns the shape and memory format of x.
ATELIER_API at::Tensor channel_norm(const at::Tensor& x, const at::Tensor& gamma, bool silu);

}  // namespace atelier::ops
