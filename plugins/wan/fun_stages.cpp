// How the inputs of Wan-Fun are encoded.
#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
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

// Throws where numbers of the camera are not those of a pose.
void check_camera(const atelier::Inputs& inputs) {
  const auto refuse = [](const std::string& what, const std::string& hint) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument, what, hint);
  };
  const auto* speed = atelier::find_input<double>(inputs, "camera_control_speed");
  if (speed != nullptr && !std::isfinite(*speed))
    refuse("camera_control_speed is no finite number", "the usual one is 0.0185");
  const auto* origin = atelier::find_input<std::vector<double>>(inputs, "camera_control_origin");
  if (origin == nullptr) return;
  if (!std::ranges::all_of(*origin, [](double number) { return std::isfinite(number); }))
    refuse("camera_control_origin has numbers that are not finite", "give those of a pose");
  if (!((*origin)[kFocalXAt] > 0 && (*origin)[kFocalYAt] > 0))
    refuse("camera_control_origin: the focal lengths, its second and third number, are not above 0",
           "give the numbers of a pose: time, focal lengths, centre, two zeros, and the matrix");
}

at::Tensor camera_of(const atelier::EncodeInputs& in) {
  check_camera(in.values);
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

atelier::MediaTarget FunInputs::target(const atelier::Inputs& inputs,
                                       const atelier::MediaTarget& asked) const {
  check_camera(inputs);
  return asked;
}

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
    const int64_t T = latent_frames_of(in.target.frames);
    return Conditioning{{kGivenClip, given_clip(latents(kStartImage), T)}};
  }
  if (in.stage == kCameraStage) return Conditioning{{kCamera, camera_of(in)}};
  return std::nullopt;
}

}  // namespace wan
