// What codes of 8 bits stand for.
#pragma once

#include "atelier/host/weight_state.h"

namespace atelier::ops {

// codes[r] * scales[r] of each row, in float32 and rounded once to `dtype`: float32, bfloat16 or
// float16. On any device; the CPU has quicker ways.
ATELIER_API at::Tensor dequantize_rows(const RowCodes& codes, at::ScalarType dtype);

}  // namespace atelier::ops
