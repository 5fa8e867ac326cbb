#include "atelier/model.h"

#include <ATen/ATen.h>

#include "atelier/error.h"

namespace atelier {

Model::~Model() = default;

at::Tensor Model::guide(const at::Tensor& with_BCTHW, const at::Tensor& without_BCTHW,
                        double scale) const {
  return without_BCTHW + scale * (with_BCTHW - without_BCTHW);
}

std::vector<WeightPtr> Model::level_weights() {
  return {};
}

void Model::prepare_levels(std::span<const float>, BlockRunner&) {}

void Model::forget_levels() {}

LossInputs Model::loss_inputs(const Conditioning& cond) const {
  auto it = cond.find("latents");
  if (it == cond.end())
    throw Error(ErrorCode::kInvalidArgument, "a training sample has no entry 'latents'",
                "encode its media first");
  return {.clean_CTHW = it->second, .mask_CTHW = std::nullopt, .pinned_CTHW = std::nullopt};
}

}  // namespace atelier
