// What LongCat-Video is given: the frames that a clip begins with, and what guides it.
#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

#include "config.h"
#include "longcat.h"
#include "model.h"

namespace wan {
namespace {

constexpr const char *kBeginning = "longcat_video", *kBeginningImage = "input_image";

// As the published programs have it.
constexpr std::string_view kLongCatNegativePrompt =
    "Bright tones, overexposed, static, blurred details, subtitles, style, works, paintings, "
    "images, static, overall gray, worst quality, low quality, JPEG compression residue, ugly, "
    "incomplete, extra fingers, poorly drawn hands, poorly drawn faces, deformed, disfigured, "
    "misshapen limbs, fused fingers, still picture, messy background, three legs, many people in "
    "the background, walking backwards";

// Throws where what is given does not go before a clip of so many frames; values may be meta.
void check_known_clip(const atelier::Inputs& inputs, int64_t frames) {
  const bool follows = inputs.contains(kBeginning);
  const auto refuse = [](const std::string& what, const std::string& hint) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument, "longcat_video: " + what, hint);
  };
  if (follows && inputs.contains(kBeginningImage))
    refuse("the clip begins with it or with input_image", "leave one of them out");
  if (!follows && !inputs.contains(kBeginningImage)) return;
  const int64_t known = follows ? atelier::clip_input(inputs, kBeginning).size(1) : int64_t{1};
  if (known % kFrameStride != 1) {
    const int64_t fewer = frames_of(latent_frames_of(known));
    refuse(std::to_string(known) + " frames, a multiple of 4 and one are read",
           "cut it to " + std::to_string(fewer) + " frames");
  }
  if (known < frames) return;
  throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                       std::string(follows ? "longcat_video: " : "input_image: ") +
                           std::to_string(known) + (known == 1 ? " frame" : " frames") +
                           " before a clip of " + std::to_string(frames) + " in all",
                       "make more frames (--num_frames), or give fewer");
}

}  // namespace

std::string_view LongCatInputs::negative_prompt() const {
  return is_longcat_ ? kLongCatNegativePrompt : std::string_view();
}

std::optional<atelier::Conditioning> LongCatInputs::encode(const atelier::EncodeInputs& in,
                                                           atelier::BlockRunner& runner) {
  const auto known = [&](const atelier::Inputs& values, const char* name) {
    return atelier::Conditioning{
        {kKnownClip, model_.encode_latents(values, name, runner).at("latents")}};
  };
  if (in.stage == "continued_clip") return known({{"clip", in.before_CTHW}}, "clip");
  if (in.stage != "known_clip") return std::nullopt;
  check_known_clip(in.values, std::min(in.target.frames, kLongCatFrames));
  return known(in.values, in.values.contains(kBeginning) ? kBeginning : kBeginningImage);
}

atelier::MediaTarget LongCatInputs::target(const atelier::Inputs& inputs,
                                           const atelier::MediaTarget& asked) const {
  if (is_longcat_)
    check_known_clip(inputs,
                     asked.frames > 0 ? std::min(asked.frames, kLongCatFrames) : kLongCatFrames);
  return asked;
}

std::vector<atelier::Piece> LongCatInputs::pieces(const atelier::Inputs&,
                                                  const atelier::MediaTarget& target) const {
  std::vector<atelier::Piece> pieces;
  const int64_t frames = target.frames;
  if (!is_longcat_ || frames <= kLongCatFrames) return pieces;
  for (int64_t first = 0; first + kLongCatShared < frames;
       first += kLongCatFrames - kLongCatShared) {
    // Whole latent frames: what is behind the end is cut off.
    const int64_t whole = (frames - first + kFrameStride - 2) / kFrameStride * kFrameStride + 1;
    pieces.push_back({.first = first,
                      .frames = std::min(kLongCatFrames, whole),
                      .shared = first == 0 ? 0 : kLongCatShared});
  }
  return pieces;
}

std::optional<atelier::GivenLatents> LongCatInputs::given(const atelier::Conditioning& cond,
                                                          at::IntArrayRef latents_CTHW) const {
  const auto known = cond.find(kKnownClip);
  if (known == cond.end()) return std::nullopt;
  const at::Tensor& values = known->second;
  const int64_t made = latents_CTHW[1] - values.size(1);
  at::Tensor free =
      at::ones({1, latents_CTHW[1], latents_CTHW[2], latents_CTHW[3]}, values.options());
  free.narrow(1, 0, values.size(1)).zero_();
  return atelier::GivenLatents{.values_CTHW = at::constant_pad_nd(values, {0, 0, 0, 0, 0, made}),
                               .free_1THW = free};
}

std::optional<at::Tensor> LongCatInputs::guide(const atelier::GuideInputs& in) {
  if (!is_longcat_) return std::nullopt;
  std::vector<at::Tensor> guided;
  for (size_t b = 0; b < in.step.cond.size(); ++b) {
    const auto sample = static_cast<int64_t>(b);
    const at::Tensor with = in.with_BCTHW[sample].to(at::kFloat);
    const at::Tensor without = in.without_BCTHW[sample].to(at::kFloat);
    const auto known = in.step.cond[b]->find(kKnownClip);
    // The published pipeline counts the frame of an image, and none of a clip.
    int64_t first = known == in.step.cond[b]->end() ? 0 : known->second.size(1);
    if (first == 1) first = 0;
    const at::Tensor c = with.slice(1, first), u = without.slice(1, first);
    const at::Tensor near = without * ((c * u).sum() / ((u * u).sum() + 1e-8));
    guided.push_back(near + in.scale * (with - near));
  }
  return at::stack(guided).to(in.with_BCTHW.scalar_type());
}

}  // namespace wan
