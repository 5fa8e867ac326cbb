// Latents that a model was given: sampling keeps them as they are.
#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "atelier/model.h"

namespace atelier::generate {

// Returns `x`, and `known` where `where` says so. Meta tensors stay such.
at::Tensor put_known(const at::Tensor& where, const at::Tensor& known, const at::Tensor& x);

// What `mask`, [1, H, W] in pixels, keeps of the latents [C, 1, H, W] of an image: the cells whose
// first pixel is less than one half. Nothing where it is undefined.
std::optional<GivenLatents> kept_by(const at::Tensor& mask, const at::Tensor& latents_CTHW);

class KnownLatents {
 public:
  // `noise`: what sampling begins with, [N, C, T, H, W]; of nullopt nothing is known.
  KnownLatents(const std::optional<GivenLatents>& given, const at::Tensor& noise);

  bool is_empty() const { return !values_.defined(); }
  // Returns `x` at noise level `sigma` with the known latents in their places, clean or with the
  // noise of that level; `x` itself where nothing is known.
  at::Tensor put_into(const at::Tensor& x, double sigma) const;
  // Calls `visit` with all that is held: while it is not used it may be moved elsewhere and back.
  void visit(const std::function<void(at::Tensor&)>& visit);

 private:
  at::Tensor values_, where_, noise_;  // undefined: nothing is known, or it stays clean
};

}  // namespace atelier::generate
