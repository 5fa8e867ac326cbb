#include "ops/cuda/row_call.h"
#include "ops/cuda/row_plan.h"
#include "ops/row_codes.h"

namespace atelier::ops::cuda {

// Defined in row_codes.cu.
extern const RowKernel quantize_rows_rows, draw_codes_rows, scale_sums_rows;

namespace {

using at::Tensor;

void quantize_rows(const Tensor& rows, const Tensor& factor, RowCodes& codes) {
  const Segments all = one_sample(rows.size(0));
  RowCall call(quantize_rows_rows, rows, all, rows.size(1), true, 0);
  call.arguments.x = input_of(rows, rows.stride(0));
  call.arguments.weight = wide_columns(factor);
  put_codes(call.arguments, codes);
  call.run();
}

void draw_codes(const RowCodes& codes, Tensor& out) {
  const Segments all = one_sample(out.size(0));
  RowCall call(draw_codes_rows, out, all, out.size(1), false, 0);
  call.arguments.x = rows_of(codes.codes);
  call.arguments.row_scales = codes.scales.const_data_ptr<float>();
  call.arguments.is_int8 = codes.codes.scalar_type() == at::kChar;
  call.arguments.out = output_of(out);
  call.run();
}

void scale_sums(const Tensor& sums, const Tensor& row_scales, const Tensor& column_scales,
                const Tensor& bias, Tensor& out) {
  const Segments all = one_sample(out.size(0));
  RowCall call(scale_sums_rows, out, all, out.size(1), false, 0);
  call.arguments.x = input_of(sums, sums.stride(0));
  call.arguments.weight = wide_columns(column_scales);
  call.arguments.shift = columns_of(bias, out);
  call.arguments.row_scales = row_scales.const_data_ptr<float>();
  call.arguments.out = output_of(out);
  call.run();
}

const DeviceKernels row_codes(row_device(), row_codes_kernels,
                              {.quantize = quantize_rows,
                               .draw = draw_codes,
                               .scale_sums = scale_sums,
                               .limits = {.widest_row_bytes = kWidestCodesBytes}});

}  // namespace
}  // namespace atelier::ops::cuda
