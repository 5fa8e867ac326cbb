// What Wan2.2-Animate-2 is given: a reference image, which says who acts and where, and a driving
// clip, which says how.
#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

#include "animate2.h"
#include "config.h"
#include "dit.h"
#include "model.h"
#include "prompt.h"

namespace wan {

using atelier::Piece;

namespace {

constexpr const char *kReferenceImage = "animate2_reference_image",
                     *kDrivingVideo = "animate2_reference_video",
                     *kDrivingText = "animate2_prompt_ref", *kOffloads = "animate2_offload_kv";
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

std::vector<int64_t> DrivenInputs::driving_ids(const atelier::EncodeInputs& in) const {
  const auto* given = atelier::find_input<std::string>(in.values, kDrivingText);
  return prompt_ids(model_.tokenizer(), given != nullptr && !given->empty() ? *given : kUsualText);
}

// The text of the driving clip, what the negative branch leaves out, and what is kept.
atelier::Conditioning DrivenInputs::encode_driving_text(const atelier::EncodeInputs& in,
                                                        atelier::BlockRunner& runner) {
  atelier::Conditioning made = {{kDrivingEmbeds, model_.encode_cut(driving_ids(in), runner)}};
  if (in.is_negative) made[kSkipsBlock] = at::ones({1}, at::kLong);
  const auto* offloads = atelier::find_input<bool>(in.values, kOffloads);
  if (offloads != nullptr && *offloads) made[kKeepsNothing] = at::ones({1}, at::kLong);
  return made;
}

// Latents of the driving clip; and what is known beside those that are made: the reference image,
// and the frame that the piece before ended with.
atelier::Conditioning DrivenInputs::encode_driving(const atelier::EncodeInputs& in,
                                                   atelier::BlockRunner& runner) {
  const at::Tensor clip = atelier::clip_input(in.values, kDrivingVideo);
  const at::Tensor reference =
      model_.latents_of(atelier::clip_input(in.values, kReferenceImage), runner);
  at::Tensor before = at::zeros_like(clip);
  const bool follows = in.before_CTHW.defined();
  if (follows) before.narrow(1, 0, in.before_CTHW.size(1)).copy_(in.before_CTHW);
  const at::Tensor given = at::cat(
      {with_mask(reference, true), with_mask(model_.latents_of(before, runner), follows)}, 1);
  return {{kDrivingClip, model_.latents_of(clip, runner)}, {kGivenClip, given}};
}

std::optional<atelier::Conditioning> DrivenInputs::encode(const atelier::EncodeInputs& in,
                                                          atelier::BlockRunner& runner) {
  if (in.stage == "driving_text") return encode_driving_text(in, runner);
  if (in.stage == "driving") return encode_driving(in, runner);
  if (in.stage == "driving_frame") {
    const at::Tensor clip = atelier::clip_input(in.values, kDrivingVideo);
    return atelier::Conditioning{{kDrivingImage, model_.look_squeezed(clip.select(1, 0), runner)}};
  }
  if (in.stage != "driven_image") return std::nullopt;
  // The image encoder sees the whole picture, bars and all, squeezed to its square.
  const at::Tensor image = atelier::clip_input(in.values, kReferenceImage).select(1, 0);
  return atelier::Conditioning{{kImageEmbeds, model_.look_squeezed(image, runner)}};
}

std::optional<std::vector<int64_t>> DrivenInputs::ids(const atelier::EncodeInputs& in) const {
  if (in.stage != "driving_text") return std::nullopt;
  return driving_ids(in);
}

// The reference image stands in front of the clip.
at::Tensor DrivenInputs::encode_leading(const atelier::Inputs& values, atelier::Conditioning& made,
                                        atelier::BlockRunner& runner) {
  if (!values.contains(kReferenceImage)) return {};
  made[kLeadingFrames] = at::ones({1}, at::kLong);
  return model_.encode_latents(values, kReferenceImage, runner).at("latents");
}

int64_t DrivenInputs::leading_frames(const atelier::Conditioning& cond) const {
  return cond.contains(kDrivingClip) || cond.contains(kLeadingFrames) ? 1 : 0;
}

// As many frames as the driving clip has, in the shape of the reference image.
atelier::MediaTarget DrivenInputs::target(const atelier::Inputs& inputs,
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
std::vector<Piece> DrivenInputs::pieces(const atelier::Inputs& inputs,
                                        const atelier::MediaTarget& target) const {
  std::vector<Piece> pieces;
  if (!inputs.contains(kDrivingVideo)) return pieces;
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
void DrivenInputs::prepare_levels(std::string_view denoiser) {
  auto* const dit = dynamic_cast<Dit*>(&model_.component(denoiser));
  keeps_ = dit != nullptr ? dit->driving() : nullptr;
  if (keeps_ != nullptr) keeps_->keep();
}

void DrivenInputs::forget_levels() {
  if (keeps_ != nullptr) keeps_->forget();
  keeps_ = nullptr;
}

}  // namespace wan
