#include "atelier/model.h"

#include <ATen/ATen.h>

#include "atelier/host/sample_scope.h"

namespace atelier {

Model::~Model() = default;

std::vector<at::Tensor> Model::denoise_all(std::span<const DenoiseInputs> calls,
                                           BlockRunner& runner) {
  std::vector<at::Tensor> velocities;
  int64_t first = 0;
  for (const DenoiseInputs& in : calls) {
    const int64_t count = in.x_BCTHW.size(0);
    const ops::SampleScope::Part own(first, count);
    velocities.push_back(denoise(in, runner));
    first += count;
  }
  return velocities;
}

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

bool Model::runs(std::string_view, const Inputs&, int64_t, int64_t) const {
  return true;
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
