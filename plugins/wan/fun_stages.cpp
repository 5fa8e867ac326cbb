// How the inputs of Wan-Fun are encoded.
#include <ATen/ATen.h>

#include "atelier/named_inputs.h"
#include "atelier/parts/clip.h"

#include "camera.h"
#include "dit.h"
#include "fun.h"
#include "model.h"

namespace wan {

using atelier::Conditioning;

namespace {

constexpr const char *kStartImage = "input_image", *kReferenceImage = "reference_image";

at::Tensor camera_of(const atelier::EncodeInputs& in) {
  const auto* speed = atelier::find_input<double>(in.values, "camera_control_speed");
  const auto* origin = atelier::find_input<std::vector<double>>(in.values, "camera_control_origin");
  return camera_path(atelier::text_input(in.values, "camera_control_direction"),
                     speed ? *speed : kCameraSpeed, origin ? *origin : std::vector<double>(),
                     in.target);
}

// Latents of the first frame, [C, 1, H, W], in front of zeros. A clip of one frame is not told it.
at::Tensor given_clip(const at::Tensor& first, int64_t latent_frames) {
  if (latent_frames == 1) return at::zeros_like(first);
  return at::constant_pad_nd(first, {0, 0, 0, 0, 0, latent_frames - 1});
}

}  // namespace

std::optional<Conditioning> FunInputs::encode(const atelier::EncodeInputs& in,
                                              atelier::BlockRunner& runner) {
  const auto latents = [&](const char* name) {
    return model_.encode_latents(in.values, name, runner).at("latents");
  };
  if (in.stage == kShownStage) {
    const bool has_reference = in.values.contains(kReferenceImage);
    const auto* image =
        atelier::find_input<at::Tensor>(in.values, has_reference ? kReferenceImage : kStartImage);
    return Conditioning{
        {kImageEmbeds,
         model_.loaded<atelier::parts::ClipVision>("image_encoder").forward(*image, runner)}};
  }
  if (in.stage == kControlStage) return Conditioning{{kControlClip, latents("control_video")}};
  if (in.stage == kReferenceStage)
    return Conditioning{{kReference, latents(kReferenceImage).squeeze(1)}};
  if (in.stage == kStartStage) {
    const int64_t T = (in.target.frames - 1) / kFrameStride + 1;
    return Conditioning{{kGivenClip, given_clip(latents(kStartImage), T)}};
  }
  if (in.stage == kCameraStage) return Conditioning{{kCamera, camera_of(in)}};
  return std::nullopt;
}

}  // namespace wan
