#include "atelier/model.h"

#include <ATen/ATen.h>

namespace atelier {

Model::~Model() = default;

at::Tensor Model::guide(const GuideInputs& in, BlockRunner&) {
  return in.without_BCTHW + in.scale * (in.with_BCTHW - in.without_BCTHW);
}

MediaTarget Model::target(const Inputs&, const MediaTarget& asked) const {
  return asked;
}

std::vector<int64_t> Model::latent_shape(const MediaTarget& target, const Conditioning&) const {
  const LatentSpec spec = latent_spec();
  return {spec.channels, (target.frames - 1) / spec.temporal_stride + 1,
          target.height / spec.spatial_stride, target.width / spec.spatial_stride};
}

FinishedLatents Model::to_decode(const at::Tensor& latents_BCTHW, const Conditioning&) const {
  return {.latents_BCTHW = latents_BCTHW};
}

std::vector<Piece> Model::pieces(const Inputs&, const MediaTarget&) const {
  return {};
}

std::vector<WeightPtr> Model::level_weights(std::string_view) {
  return {};
}

void Model::prepare_levels(std::string_view, std::span<const float>, BlockRunner&) {}

void Model::forget_levels() {}

Sound Model::decode_sound(const at::Tensor&, const Conditioning&, BlockRunner&) {
  return {};
}

std::optional<GivenLatents> Model::given(const Conditioning&, at::IntArrayRef) const {
  return std::nullopt;
}

}  // namespace atelier
