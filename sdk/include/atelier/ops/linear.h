// The matrix product of every family: weights drawn, adapters inside, output kept or recomputed.
#pragma once

#include <span>

#include "atelier/weight.h"

namespace atelier::ops {

// A low-rank addition to one linear layer: y += scale * (x aᵀ) bᵀ. Tensors rest on the compute
// device; float32 ones are cast to x's dtype for the product, their gradients come back in float32.
struct Adapter {
  at::Tensor a;  // [r, in]
  at::Tensor b;  // [out, r]
  double scale =
      1.0;  // strength * alpha / r; 0 skips the adapter, so that the base's bits come back
  // Part of x's elements that this adapter does not see, in [0, 1); the others grow by
  // 1 / (1 - dropout). Which ones comes from the default CPU generator, anew in each call. Set
  // while training only.
  double dropout = 0.0;
  // Which one it is of those that not all samples have, from 0: it is in the rows of samples that
  // have it, as strong as they say, and takes no part where no samples are told apart. -1: it is in
  // all rows. A numbered one has no dropout and no gradients.
  int64_t number = -1;
};

// y = x Wᵀ + bias + sum over adapters of scale * (x aᵀ) bᵀ; only the sum is ever stored.
//
// x: [..., in] in the weight's compute dtype and on its device. bias may be null. For the backward
// pass it saves x (only if an adapter, the weight or the bias is trained) and the rank-r products;
// the weight is drawn and a dropout's mask is made again. Gradients reach x, adapters, and weight
// and bias where those are trainable. Throws Error{kInvalidArgument} when x's last axis is not the
// weight's second.
//
// Returns [..., out], contiguous.
ATELIER_API at::Tensor linear(const at::Tensor& x, const WeightPtr& weight,
                              const WeightPtr& bias = nullptr,
                              std::span<const Adapter> adapters = {});

// Rows `ids` of a table [count, width]. ids: int64 of any shape. Returns [..., width]. The gradient
// reaches the table where it is trainable.
ATELIER_API at::Tensor embedding(const at::Tensor& ids, const WeightPtr& table);

}  // namespace atelier::ops
