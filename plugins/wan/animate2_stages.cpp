// What Wan2.2-Animate-2 is given: a reference image, which says who acts and where, and a driving
// clip, which says how.
#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/parts/clip.h"

#include "animate2.h"
#include "config.h"
#include "dit.h"
#include "model.h"
#include "prompt.h"

namespace wan {

using atelier::Piece;
using atelier::parts::ClipVision;

namespace {

constexpr const char *kReferenceImage = "animate2_reference_image",
                     *kDrivingVideo = "animate2_reference_video",
                     *kDrivingText = "animate2_prompt_ref";
constexpr std::string_view kUsualText = "视频中的人在做动作，背景静止";

constexpr int64_t kArea = 800 * 640, kSideMultiple = 16;
constexpr int64_t kPieceFrames = 81, kSharedFrames = 1;

int64_t whole_side(double side) {
  const auto floor = static_cast<int64_t>(side);
  return std::max(floor / kSideMultiple, int64_t{1}) * kSideMultiple;
}

// Which frames are known beside latents of them: their first one, or none.
at::Tensor with_mask(const at::Tensor& latents_CTHW, bool is_first_known) {
  at::Tensor known = at::zeros_like(latents_CTHW.narrow(0, 0, kFrameStride));
  if (is_first_known) known.narrow(1, 0, 1).fill_(1);
  return at::cat({known, latents_CTHW});
}

}  // namespace

std::vector<int64_t> Wan::driving_ids(const atelier::EncodeInputs& in) const {
  const auto* given = atelier::find_input<std::string>(in.values, kDrivingText);
  return prompt_ids(tokenizer(), given != nullptr && !given->empty() ? *given : kUsualText);
}

// The text of the driving clip, and what the negative branch leaves out.
atelier::Conditioning Wan::encode_driving_text(const atelier::EncodeInputs& in,
                                               atelier::BlockRunner& runner) {
  atelier::Conditioning made = {{kDrivingEmbeds, encode_cut(driving_ids(in), runner)}};
  if (in.is_negative) made[kSkipsBlock] = at::ones({1}, at::kLong);
  return made;
}

// The image encoder sees the whole picture, bars and all, squeezed to its square.
atelier::Conditioning Wan::encode_squeezed(const at::Tensor& image_CHW, const char* entry,
                                           atelier::BlockRunner& runner) {
  const auto& clip = loaded<ClipVision>("image_encoder");
  const at::Tensor square = at::upsample_bicubic2d(image_CHW.to(at::kFloat).unsqueeze(0),
                                                   {clip.side(), clip.side()}, false)[0];
  return {{entry, clip.look(square, runner)}};
}

// Latents of the driving clip; and what is known beside those that are made: the reference image,
// and the frame that the piece before ended with.
atelier::Conditioning Wan::encode_driving(const atelier::EncodeInputs& in,
                                          atelier::BlockRunner& runner) {
  const auto latents_of = [&](const at::Tensor& clip) {
    return encode_latents({{"clip", clip}}, "clip", runner).at("latents");
  };
  const at::Tensor clip = atelier::clip_input(in.values, kDrivingVideo);
  const at::Tensor reference = latents_of(atelier::clip_input(in.values, kReferenceImage));
  at::Tensor before = at::zeros_like(clip);
  const bool follows = in.before_CTHW.defined();
  if (follows) before.narrow(1, 0, in.before_CTHW.size(1)).copy_(in.before_CTHW);
  const at::Tensor given =
      at::cat({with_mask(reference, true), with_mask(latents_of(before), follows)}, 1);
  return {{kDrivingClip, latents_of(clip)}, {kGivenClip, given}};
}

atelier::Conditioning Wan::encode_animate2(const atelier::EncodeInputs& in,
                                           atelier::BlockRunner& runner) {
  if (in.stage == "driving_text") return encode_driving_text(in, runner);
  if (in.stage == "driving") return encode_driving(in, runner);
  if (in.stage == "driving_frame") {
    const at::Tensor clip = atelier::clip_input(in.values, kDrivingVideo);
    return encode_squeezed(clip.select(1, 0), kDrivingImage, runner);
  }
  return encode_squeezed(atelier::clip_input(in.values, kReferenceImage).select(1, 0), kImageEmbeds,
                         runner);
}

// The latents of the reference image, which stand in front of those that are learnt.
at::Tensor Wan::leading_image(const atelier::Inputs& values, atelier::BlockRunner& runner) {
  return encode_latents(values, kReferenceImage, runner).at("latents");
}

// As many frames as the driving clip has, in the shape of the reference image.
atelier::MediaTarget Wan::driven_target(const atelier::Inputs& inputs,
                                        const atelier::MediaTarget& asked) const {
  atelier::MediaTarget made = asked;
  if (inputs.contains(kDrivingVideo) && made.frames == 0)
    made.frames = atelier::clip_input(inputs, kDrivingVideo).size(1);
  const auto* image = atelier::find_input<at::Tensor>(inputs, kReferenceImage);
  if (image == nullptr) return made;
  const auto height = static_cast<double>(image->size(-2)),
             width = static_cast<double>(image->size(-1));
  const double aspect = height / width;
  if (asked.height == 0 && asked.width == 0) {
    made.height = whole_side(std::floor(std::sqrt(kArea * aspect)));
    made.width = whole_side(std::floor(std::sqrt(kArea / aspect)));
  } else if (asked.height == 0) {
    made.height = whole_side(static_cast<double>(asked.width) * aspect);
  } else if (asked.width == 0) {
    made.width = whole_side(static_cast<double>(asked.height) / aspect);
  }
  return made;
}

// Pieces of 81 frames, each of which begins with the last frame of the one before. A shorter clip
// is one piece where its frames are not those of whole latent frames.
std::vector<Piece> Wan::pieces(const atelier::Inputs& inputs,
                               const atelier::MediaTarget& target) const {
  std::vector<Piece> pieces;
  if (!inputs.contains(kDrivingVideo)) return danced_pieces(target);
  const int64_t whole = (target.frames + kFrameStride - 2) / kFrameStride * kFrameStride + 1;
  if (whole <= kPieceFrames) {
    if (whole != target.frames) pieces.push_back({0, whole, 0});
    return pieces;
  }
  for (int64_t first = 0; first + kSharedFrames < target.frames;
       first += kPieceFrames - kSharedFrames)
    pieces.push_back({first, kPieceFrames, first == 0 ? 0 : kSharedFrames});
  return pieces;
}

// Keys and values of the driving clip are kept from step to step.
void Wan::prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                         atelier::BlockRunner& runner) {
  ComponentModel::prepare_levels(denoiser, sigmas, runner);
  keeps_ = loaded<Dit>(denoiser).driving();
  if (keeps_ != nullptr) keeps_->keep();
}

void Wan::forget_levels() {
  ComponentModel::forget_levels();
  if (keeps_ != nullptr) keeps_->forget();
  keeps_ = nullptr;
}

}  // namespace wan
