#include "host/generate/known_latents.h"

#include <ATen/ATen.h>

namespace atelier::generate {

at::Tensor put_known(const at::Tensor& where, const at::Tensor& known, const at::Tensor& x) {
  return x.is_meta() ? x * 1 : at::where(where, known, x);  // LibTorch has none of meta tensors
}

std::optional<GivenLatents> kept_by(const at::Tensor& mask, const at::Tensor& latents_CTHW) {
  if (!mask.defined()) return std::nullopt;
  const at::Tensor cells = at::upsample_nearest2d(mask.unsqueeze(0), latents_CTHW.sizes().slice(2));
  return GivenLatents{.values_CTHW = latents_CTHW, .free_1THW = cells >= 0.5, .is_noised = true};
}

KnownLatents::KnownLatents(const std::optional<GivenLatents>& given, const at::Tensor& noise) {
  if (!given) return;
  values_ = given->values_CTHW.to(noise.options());
  where_ = given->free_1THW.to(noise.device()) == 0;
  if (given->is_noised) noise_ = noise.clone();
}

at::Tensor KnownLatents::put_into(const at::Tensor& x, double sigma) const {
  if (is_empty()) return x;
  const at::Tensor known = noise_.defined() ? values_ * (1.0 - sigma) + noise_ * sigma : values_;
  return put_known(where_, known, x);
}

void KnownLatents::visit(const std::function<void(at::Tensor&)>& visit) {
  for (at::Tensor* const tensor : {&values_, &where_, &noise_})
    if (tensor->defined()) visit(*tensor);
}

}  // namespace atelier::generate
