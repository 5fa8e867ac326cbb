// What codes of 8 bits stand for.
#pragma once

#include "atelier/host/weight_state.h"

namespace atelier::ops {

// By what each row of `values`, float32 [n, k], is divided to be codes that go up to `limit`: its
// largest magnitude / limit, [n], the same bits on every device. A row of zeros gets a scale that
// can be divided by; NaN stays NaN.
ATELIER_API at::Tensor row_scales(const at::Tensor& values, double limit);

// codes[r] * scales[r] of each row, in float32 and rounded once to `dtype`: float32, bfloat16 or
// float16. On any device; the CPU has quicker ways.
ATELIER_API at::Tensor dequantize_rows(const RowCodes& codes, at::ScalarType dtype);

}  // namespace atelier::ops
