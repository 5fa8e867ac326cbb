// Matrix products in 8 bits: both factors are codes with a scale a row.
#pragma once

#include "atelier/host/weight_state.h"

namespace atelier::ops {

// rows Wᵀ, where W is `weight`, [out, in], of int8 or e4m3. Each of `rows` [n, in] is quantised to
// such codes by its own largest value; products of codes are summed exactly (int8) or in float32
// (e4m3), scaled in float32, and rounded once to the rows' dtype; `bias`, [out] of that dtype, may
// be undefined and is added then, or just before by a GPU's e4m3 products. Not differentiable.
//
// Returns [n, out].
at::Tensor eight_bit_product(const at::Tensor& rows, const RowCodes& weight,
                             const at::Tensor& bias);

// grad W, what the gradient [n, out] of such a product is to `rows`. The scales of W's rows are
// folded into `grad` before its rows are quantised.
//
// Returns [n, in].
at::Tensor eight_bit_gradient(const at::Tensor& grad, const RowCodes& weight);

}  // namespace atelier::ops
