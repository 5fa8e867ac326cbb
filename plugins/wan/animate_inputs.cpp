// What Wan2.2-Animate is given: in pixels, in latents, and in segments of a long clip.
#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

#include "animate.h"
#include "dit.h"
#include "model.h"

namespace wan {

using atelier::EncodeInputs;
using atelier::Inputs;

namespace {

constexpr const char *kCharacterInput = "input_image", *kPoseInput = "animate_pose_video",
                     *kFaceInput = "animate_face_video", *kAroundInput = "animate_inpaint_video",
                     *kMaskInput = "animate_mask_video", *kLengthInput = "segment_frame_length",
                     *kSharedInput = "prev_segment_conditioning_frames";
constexpr int64_t kSegmentFrames = 77, kFewestShared = 1, kMostShared = 5;
constexpr int64_t kPoseSides = 16;
constexpr double kHalfRange = 127.5;

[[noreturn]] void refuse(const std::string& message, const std::string& hint) {
  throw atelier::Error(atelier::ErrorCode::kInvalidArgument, message, hint);
}

int64_t animate_number(const Inputs& inputs, const char* name, int64_t otherwise) {
  const auto* const given = atelier::find_input<int64_t>(inputs, name);
  return given == nullptr ? otherwise : *given;
}

void check_replacement(const Inputs& inputs) {
  if (inputs.contains(kAroundInput) == inputs.contains(kMaskInput)) return;
  const bool lacks_mask = inputs.contains(kAroundInput);
  refuse(std::string(lacks_mask ? kAroundInput : kMaskInput) + " without " +
             (lacks_mask ? kMaskInput : kAroundInput) +
             ": a character is put into a clip where its mask says",
         "give both, or leave both out");
}

// [4 + C, 1, H, W] of the latents of the character: all of it is known.
at::Tensor known_character(const at::Tensor& latents) {
  const at::Tensor known =
      at::ones_like(latents.narrow(0, 0, 1)).expand({kFrameStride, -1, -1, -1});
  return at::cat({known, latents});
}

// Which pixels of each frame are known, [4, T, h, w]: all of the first `shared` frames, and what is
// around the mask. A latent frame has four, the first one its frame four times.
at::Tensor known_frames(const EncodeInputs& in, int64_t shared, const at::Tensor& latents) {
  const int64_t frames = in.target.frames, H = latents.size(2), W = latents.size(3);
  at::Tensor known = at::zeros({frames, H, W}, latents.options());
  if (in.values.contains(kMaskInput)) {
    const at::Tensor mask = atelier::clip_input(in.values, kMaskInput, 1)[0];
    known = 1 - at::upsample_nearest2d(mask.unsqueeze(0), {H, W})[0].to(latents.scalar_type());
  }
  known = at::cat(
      {at::ones_like(known.narrow(0, 0, shared)), known.narrow(0, shared, frames - shared)});
  known = at::cat({known.narrow(0, 0, 1).expand({kFrameStride - 1, -1, -1}), known});
  return known.view({-1, kFrameStride, H, W}).transpose(0, 1);
}

// Black on the negative branch.
at::Tensor bytes_of_faces(const EncodeInputs& in) {
  const at::Tensor clip = atelier::clip_input(in.values, kFaceInput);
  const auto bytes = clip.options().dtype(at::kByte);
  if (in.is_negative) return at::zeros(clip.sizes(), bytes);
  std::vector<at::Tensor> frames;
  for (const at::Tensor& frame : clip.unbind(1))
    frames.push_back(frame.add(1).mul(kHalfRange).round().clamp(0, 255).to(at::kByte));
  return at::stack(frames, 1);
}

}  // namespace

AnimateInputs::AnimateInputs(Wan& model, std::span<const atelier::Detection> parts)
    : Variant(model) {
  const auto dit = std::ranges::find(parts, "dit", &atelier::Detection::component);
  const auto adapter = std::ranges::find(parts, kAnimateAdapter, &atelier::Detection::component);
  if (dit == parts.end() || adapter == parts.end()) return;
  const auto d = atelier::parts::whole_config_of<DitConfig>(*dit);
  const auto a = atelier::config_of<AnimateConfig>(*adapter);
  const int64_t last = (a.adapters - 1) * a.interval;
  if (a.width == d.width && a.head_dim == d.head_dim() && a.patch == d.patch &&
      a.channels == d.channels && last < d.layers)
    return;
  refuse("the animate_adapter is not made for the dit: it has " + std::to_string(a.width) +
             " channels, and adds behind block " + std::to_string(last) + "; the dit has " +
             std::to_string(d.width) + " and " + std::to_string(d.layers) + " blocks",
         "pass the adapter that is published with the DiT");
}

std::optional<atelier::Conditioning> AnimateInputs::encode(const EncodeInputs& in,
                                                           atelier::BlockRunner& runner) {
  if (in.stage == "animate_clip") return encode_clip(in, runner);
  if (in.stage == "animate_faces") return {{{kAnimateFaces, bytes_of_faces(in)}}};
  if (in.stage != "animate_pose") return std::nullopt;
  return {{{kAnimatePose, model_.latents_of(atelier::clip_input(in.values, kPoseInput), runner)}}};
}

atelier::Conditioning AnimateInputs::encode_clip(const EncodeInputs& in,
                                                 atelier::BlockRunner& runner) {
  check_replacement(in.values);
  const int64_t frames = in.target.frames;
  const at::Tensor character =
      known_character(model_.latents_of(atelier::clip_input(in.values, kCharacterInput), runner));
  const bool replaces = in.values.contains(kAroundInput);
  at::Tensor clip = replaces ? atelier::clip_input(in.values, kAroundInput)
                             : at::zeros({3, frames, in.target.height, in.target.width},
                                         atelier::clip_input(in.values, kCharacterInput).options());
  const int64_t shared = in.before_CTHW.defined() ? in.before_CTHW.size(1) : 0;
  if (shared > 0)
    clip = at::cat({in.before_CTHW.to(clip.options()), clip.narrow(1, shared, frames - shared)}, 1);
  const at::Tensor latents = model_.latents_of(clip, runner);
  const at::Tensor given = at::cat({known_frames(in, shared, latents), latents});
  return {{kGivenClip, at::cat({character, given}, 1)}};
}

at::Tensor AnimateInputs::encode_leading(const Inputs& values, atelier::Conditioning& made,
                                         atelier::BlockRunner& runner) {
  if (!values.contains(kCharacterInput)) return {};
  made[kAnimateCharacter] = at::ones({1}, at::kLong);
  return model_.latents_of(atelier::clip_input(values, kCharacterInput), runner);
}

int64_t AnimateInputs::leading_frames(const atelier::Conditioning& cond) const {
  return cond.contains(kAnimatePose) || cond.contains(kAnimateCharacter) ? 1 : 0;
}

std::optional<at::Tensor> AnimateInputs::denoise(const atelier::DenoiseInputs& in,
                                                 atelier::BlockRunner& runner) {
  const auto poses = [](const atelier::Conditioning* cond) { return cond->contains(kAnimatePose); };
  if (std::ranges::none_of(in.cond, poses)) return std::nullopt;
  Animation animation(model_.loaded<AnimateAdapter>(kAnimateAdapter));
  const Dit::With with(model_.loaded<Dit>(in.denoiser), animation);
  return model_.denoise_alone(in, runner);
}

atelier::MediaTarget AnimateInputs::target(const Inputs& inputs,
                                           const atelier::MediaTarget& asked) const {
  check_replacement(inputs);
  const auto* const pose = atelier::find_input<at::Tensor>(inputs, kPoseInput);
  if (pose == nullptr || pose->dim() != 4) return asked;
  atelier::MediaTarget target = asked;
  if (asked.frames == 0) target.frames = pose->size(1);
  if (asked.height == 0 && asked.width == 0) {
    target.height = pose->size(2) / kPoseSides * kPoseSides;
    target.width = pose->size(3) / kPoseSides * kPoseSides;
  }
  return target;
}

std::vector<atelier::Piece> AnimateInputs::pieces(const Inputs& inputs,
                                                  const atelier::MediaTarget& target) const {
  if (!inputs.contains(kPoseInput)) return {};
  const int64_t length = animate_number(inputs, kLengthInput, kSegmentFrames);
  const int64_t shared = animate_number(inputs, kSharedInput, kFewestShared);
  if (shared != kFewestShared && shared != kMostShared)
    refuse(std::string("--") + kSharedInput + " is " + std::to_string(shared),
           "segments share 1 or 5 frames");
  const std::string told = std::string("--") + kLengthInput + " is " + std::to_string(length);
  if (length % kFrameStride != 1)
    refuse(told + ", one more than a multiple of 4 is made at a time", "use 77, as published");
  if (length <= shared)
    refuse(told + ", and a segment has more than the frames that it shares, which are " +
               std::to_string(shared),
           "use 77, as published");
  std::vector<atelier::Piece> pieces;
  if (target.frames <= length && target.frames % kFrameStride == 1) return pieces;
  for (int64_t first = 0; first == 0 || first + shared < target.frames; first += length - shared)
    pieces.push_back({first, length, first == 0 ? 0 : shared});
  return pieces;
}

}  // namespace wan
