// One place in the autograd graph of a block for each tensor that is trained.
#pragma once

#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier::ops {

// While it lives, everything that is made of a trained tensor in grad mode hangs on one alias of
// that tensor. The gradients of all uses are summed up there and leave the block as one, as they do
// where the block is run again in the backward pass: the order of sums, and so their last bits, is
// the same either way.
//
// Thread-local. A scope inside a scope takes its aliases from those of the outer one.
class ATELIER_API LeafScope {
 public:
  LeafScope();
  ~LeafScope();
  LeafScope(const LeafScope&) = delete;
  LeafScope& operator=(const LeafScope&) = delete;

  // What takes the place of `trained` in the graph that is being made: `trained` itself without a
  // scope, without grad mode, and when it is undefined or not trained.
  static at::Tensor place_of(const at::Tensor& trained);

 private:
  static at::Tensor place_in(LeafScope* scope, const at::Tensor& trained);

  std::unordered_map<const c10::TensorImpl*, at::Tensor> places_;
  LeafScope* outer_;
};

}  // namespace atelier::ops
