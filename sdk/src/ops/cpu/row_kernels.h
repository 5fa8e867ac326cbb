// Loops over rows for the CPU, compiled once for each instruction set and element type.
#pragma once

#include <cstdint>

namespace atelier::ops::cpu {

// Pointers are to elements of the table's type, `sums` to its accumulation type (float, or double
// for double). Rows are dense; `n` of them, `width` elements each, one after another unless strides
// say otherwise. `sums` are added to and may be null where they are not wanted.
struct RowKernels {
  // (x - mean) / deviation * factor + shift. Here and below shift, factor and gate: accumulation
  // type, one row each.
  void (*norm_scale)(const void* x, const void* shift, const void* factor, void* out, int64_t n,
                     int64_t width, double eps);
  // `added` may be null. sums: [shift | factor].
  void (*norm_scale_backward)(const void* grad, const void* x, const void* factor,
                              const void* added, void* grad_x, void* sums, int64_t n, int64_t width,
                              double eps);
  void (*gate_residual)(const void* x, const void* y, const void* gate, void* out, int64_t n,
                        int64_t width);
  // y may be null when sums is.
  void (*gate_residual_backward)(const void* grad, const void* y, const void* gate, void* grad_y,
                                 void* sums, int64_t n, int64_t width);
  void (*gate_residual_norm_scale)(const void* x, const void* y, const void* gate,
                                   const void* shift, const void* factor, void* sum, void* out,
                                   int64_t n, int64_t width, double eps);
  void (*rms_norm)(const void* x, const void* weight, void* out, int64_t n, int64_t width,
                   double eps);
  void (*rms_norm_backward)(const void* grad, const void* x, const void* weight, void* grad_x,
                            void* sums, int64_t n, int64_t width, double eps);
  // [added +] x / rms(x) * factor. `added` may be null.
  void (*rms_scale)(const void* x, const void* added, const void* factor, void* out, int64_t n,
                    int64_t width, double eps);
  // sums: of factor. `added` is added to the gradient of x and may be null.
  void (*rms_scale_backward)(const void* grad, const void* x, const void* factor, const void* added,
                             void* grad_x, void* sums, int64_t n, int64_t width, double eps);
  // `heads` rows of `width` in each of n; cos and sin: accumulation type, [n, width / 2]. Strides
  // in elements.
  void (*norm_rope)(const void* x, int64_t row_stride, int64_t head_stride, const void* weight,
                    const void* cos, const void* sin, bool halves, void* out, int64_t n,
                    int64_t heads, int64_t width, double eps);
  // x and weight may be null, both.
  void (*norm_rope_backward)(const void* grad, const void* x, int64_t row_stride,
                             int64_t head_stride, const void* weight, const void* cos,
                             const void* sin, bool halves, void* grad_x, void* sums, int64_t n,
                             int64_t heads, int64_t width, double eps);
  void (*swiglu)(const void* gate, int64_t gate_stride, const void* up, int64_t up_stride,
                 void* out, int64_t n, int64_t width);
  void (*swiglu_backward)(const void* grad, const void* gate, int64_t gate_stride, const void* up,
                          int64_t up_stride, void* grad_gate, void* grad_up, int64_t n,
                          int64_t width);
  void (*gelu_tanh)(const void* x, void* out, int64_t n);
  void (*gelu_tanh_backward)(const void* grad, const void* x, void* grad_x, int64_t n);
  void (*channel_norm)(const void* x, const void* gamma, bool silu, void* out, int64_t n,
                       int64_t width);
  void (*channel_norm_backward)(const void* grad, const void* x, const void* gamma, bool silu,
                                void* grad_x, void* sums, int64_t n, int64_t width);
};

enum Element { kFloat32, kFloat64, kBFloat16, kFloat16, kElementCount };

const RowKernels* baseline_row_kernels();  // [kElementCount]
#if defined(__x86_64__)
const RowKernels* avx2_row_kernels();
const RowKernels* avx512_row_kernels();
#endif

}  // namespace atelier::ops::cpu
