// The host half of the kernels that make codes of 8 bits, and values of them.
#pragma once

#include "ops/pointwise_kernels.h"

namespace atelier::ops::cuda {

// See PointwiseKernels. Wider rows than this have more bytes than four packs of each lane.
inline constexpr int64_t kWidestCodesBytes = 4 * 16 * 512;

RowCodes quantize_rows(const at::Tensor& rows, const at::Tensor& factor, at::ScalarType type);
CodedRows norm_modulate_codes(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                              const Segments& rows, double eps, at::ScalarType type);
std::pair<at::Tensor, CodedRows> gate_residual_norm_modulate_codes(
    const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate, const at::Tensor& shift,
    const at::Tensor& scale, const Segments& rows, double eps, at::ScalarType type);
CodedRows gelu_tanh_codes(const at::Tensor& x, at::ScalarType type);
at::Tensor draw_codes(const RowCodes& codes, at::ScalarType dtype);
void scale_sums(const at::Tensor& sums, const at::Tensor& row_scales,
                const at::Tensor& column_scales, const at::Tensor& bias, at::Tensor& out);

}  // namespace atelier::ops::cuda
