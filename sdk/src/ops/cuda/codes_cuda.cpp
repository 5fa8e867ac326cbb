#include "ops/cuda/codes_cuda.h"

#include "ops/cuda/row_call.h"

namespace atelier::ops::cuda {
namespace {

using at::Tensor;

// Codes that a kernel is to write of rows like `x`, [N, D].
RowCodes put_codes(RowArguments& arguments, const Tensor& x, at::ScalarType type) {
  RowCodes codes = {at::empty(x.sizes(), x.options().dtype(at::kByte)).view(type),
                    at::empty({x.size(0)}, x.options().dtype(at::kFloat))};
  arguments.codes = output_of(codes.codes);
  arguments.new_scales = codes.scales.mutable_data_ptr<float>();
  arguments.is_int8 = type == at::kChar;
  return codes;
}

void put_modulation(RowArguments& arguments, const Tensor& x, const Tensor& shift,
                    const Tensor& scale, double eps) {
  arguments.x = rows_of(x);
  arguments.weight = columns_of(scale, x);
  arguments.shift = columns_of(shift, x);
  arguments.one_plus = true;
  arguments.eps = static_cast<float>(eps);
}

}  // namespace

RowCodes quantize_rows(const Tensor& rows, const Tensor& factor, at::ScalarType type) {
  const Segments all = one_sample(rows.size(0));
  RowCall call(RowOperator::quantize_rows, rows, all, rows.size(1), true, 0);
  call.arguments.x = input_of(rows, rows.stride(0));
  call.arguments.weight = wide_columns(factor);
  RowCodes codes = put_codes(call.arguments, rows, type);
  call.run();
  return codes;
}

CodedRows norm_modulate_codes(const Tensor& x, const Tensor& shift, const Tensor& scale,
                              const Segments& rows, double eps, at::ScalarType type) {
  Tensor out = packed_like(x);
  RowCall call(RowOperator::norm_modulate_codes, x, rows, x.size(1), true, 0);
  put_modulation(call.arguments, x, shift, scale, eps);
  call.arguments.out = output_of(out);
  RowCodes codes = put_codes(call.arguments, x, type);
  call.run();
  return {out, codes};
}

std::pair<Tensor, CodedRows> gate_residual_norm_modulate_codes(
    const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& shift, const Tensor& scale,
    const Segments& rows, double eps, at::ScalarType type) {
  Tensor sum = packed_like(x), out = packed_like(x);
  RowCall call(RowOperator::gate_residual_norm_modulate_codes, x, rows, x.size(1), true, 0);
  put_modulation(call.arguments, x, shift, scale, eps);
  call.arguments.y = rows_of(y);
  call.arguments.by_sample = columns_of(gate, x);
  call.arguments.out = output_of(out);
  call.arguments.second = output_of(sum);
  RowCodes codes = put_codes(call.arguments, x, type);
  call.run();
  return {sum, {out, codes}};
}

CodedRows gelu_tanh_codes(const Tensor& x, at::ScalarType type) {
  Tensor out = packed_like(x);
  const Segments all = one_sample(x.size(0));
  RowCall call(RowOperator::gelu_tanh_codes, x, all, x.size(1), true, 0);
  call.arguments.x = rows_of(x);
  call.arguments.out = output_of(out);
  RowCodes codes = put_codes(call.arguments, x, type);
  call.run();
  return {out, codes};
}

Tensor draw_codes(const RowCodes& codes, at::ScalarType dtype) {
  Tensor out = at::empty(codes.codes.sizes(), codes.codes.options().dtype(dtype));
  const Segments all = one_sample(out.size(0));
  RowCall call(RowOperator::draw_codes, out, all, out.size(1), false, 0);
  call.arguments.x = rows_of(codes.codes);
  call.arguments.row_scales = codes.scales.const_data_ptr<float>();
  call.arguments.is_int8 = codes.codes.scalar_type() == at::kChar;
  call.arguments.out = output_of(out);
  call.run();
  return out;
}

void scale_sums(const Tensor& sums, const Tensor& row_scales, const Tensor& column_scales,
                const Tensor& bias, Tensor& out) {
  const Segments all = one_sample(out.size(0));
  RowCall call(RowOperator::scale_sums, out, all, out.size(1), false, 0);
  call.arguments.x = input_of(sums, sums.stride(0));
  call.arguments.weight = wide_columns(column_scales);
  call.arguments.shift = columns_of(bias, out);
  call.arguments.row_scales = row_scales.const_data_ptr<float>();
  call.arguments.out = output_of(out);
  call.run();
}

}  // namespace atelier::ops::cuda
