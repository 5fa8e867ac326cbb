// What a VACE follows: from clips, masks and pictures to what its blocks read.
#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"

#include "config.h"
#include "dit.h"
#include "model.h"
#include "vace.h"

namespace wan {

using atelier::Conditioning;
using atelier::Inputs;
using atelier::MediaTarget;

namespace {

constexpr const char *kVideo = "vace_video", *kMask = "vace_video_mask",
                     *kReferences = "vace_reference_image", *kScale = "vace_scale";
// The most frames and pixels of a clip whose size nobody said.
constexpr int64_t kMostFrames = 81;
constexpr double kMostPixels = 480.0 * 832.0;

using Pictures = std::vector<at::Tensor>;

bool is_followed(const Inputs& values) {
  return values.contains(kVideo) || values.contains(kMask) || values.contains(kReferences);
}

// A picture [3, h, w] scaled to lie within [3, H, W], in the middle, white beside it. Published
// code resizes it in floating point, and without smoothing where it becomes smaller.
at::Tensor within(const at::Tensor& picture, int64_t height, int64_t width) {
  const double scale = std::min(static_cast<double>(height) / static_cast<double>(picture.size(1)),
                                static_cast<double>(width) / static_cast<double>(picture.size(2)));
  const auto side = [&](int64_t length) {
    return std::max<int64_t>(static_cast<int64_t>(static_cast<double>(length) * scale), 1);
  };
  const int64_t h = side(picture.size(1)), w = side(picture.size(2));
  const int64_t top = (height - h) / 2, left = (width - w) / 2;
  const at::Tensor scaled =
      at::upsample_bilinear2d(picture.unsqueeze(0), {h, w}, /*align_corners=*/false)[0];
  return at::constant_pad_nd(scaled, {left, width - w - left, top, height - h - top}, 1);
}

// Which pixels are made anew, [1, F, H, W], as channels of latent cells: [kMaskChannels, T, h, w].
// Of the frames that a latent frame is made of the one in the middle counts, of all frames laid out
// evenly, as published.
at::Tensor mask_channels(const at::Tensor& mask_1FHW) {
  const int64_t F = mask_1FHW.size(1), T = latent_frames_of(F);
  std::vector<int64_t> frames;
  for (int64_t i = 0; i < T; ++i) frames.push_back((2 * i + 1) * F / (2 * T));
  return mask_1FHW[0]
      .index_select(0, at::tensor(frames, at::kLong).to(mask_1FHW.device()))
      .view({T, mask_1FHW.size(2) / kMaskSide, kMaskSide, mask_1FHW.size(3) / kMaskSide, kMaskSide})
      .permute({2, 4, 0, 1, 3})
      .flatten(0, 1);
}

// The device and dtype of any tensor among the inputs.
at::TensorOptions options_of(const Inputs& values) {
  for (const auto& [name, value] : values) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) return tensor->options();
    if (const auto* list = std::get_if<Pictures>(&value)) return list->front().options();
  }
  return at::kFloat;
}

}  // namespace

void VaceInputs::check_scale(const Inputs& inputs) const {
  const auto* scale = atelier::find_input<std::vector<double>>(inputs, kScale);
  if (scale == nullptr) return;
  const auto refuse = [](const std::string& message, const std::string& hint) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument, "--vace_scale: " + message, hint);
  };
  if (!is_followed(inputs))
    refuse("there is nothing to follow",
           "give vace_video, vace_video_mask or vace_reference_image, or leave it out");
  if (blocks_ > 0 && scale->size() > 1 && std::ssize(*scale) != blocks_)
    refuse(std::to_string(scale->size()) + " numbers, and the VACE has " + std::to_string(blocks_) +
               " blocks",
           "give one number, or one for each block");
}

MediaTarget VaceInputs::target(const Inputs& inputs, const MediaTarget& asked) const {
  check_scale(inputs);
  const auto* video = atelier::find_input<at::Tensor>(inputs, kVideo);
  if (video == nullptr) return asked;
  const at::Tensor clip = atelier::clip_input(inputs, kVideo);
  MediaTarget target = asked;
  if (target.frames == 0)
    target.frames = frames_of(latent_frames_of(std::min(clip.size(1), kMostFrames)));
  if (target.height != 0 || target.width != 0) return target;
  const int64_t height = clip.size(2), width = clip.size(3);
  const double scale = std::min(1.0, std::sqrt(kMostPixels / static_cast<double>(height * width)));
  const int64_t multiple = model_.latent_spec().pixel_multiple;
  const auto side = [&](int64_t length) {
    const auto scaled = static_cast<int64_t>(static_cast<double>(length) * scale);
    return std::max<int64_t>(scaled / multiple, 1) * multiple;
  };
  target.height = side(height);
  target.width = side(width);
  return target;
}

bool VaceInputs::runs(std::string_view control, const Inputs& inputs) const {
  const auto* scale = atelier::find_input<std::vector<double>>(inputs, kScale);
  return !control.starts_with("vace") || scale == nullptr ||
         std::ranges::any_of(*scale, [](double one) { return one != 0; });
}

// Each picture alone: together they would be the frames of a clip.
Conditioning VaceInputs::encode_references(const Inputs& values, int64_t height, int64_t width,
                                           atelier::BlockRunner& runner) {
  const auto* pictures = atelier::find_input<Pictures>(values, kReferences);
  if (pictures == nullptr) return {};
  std::vector<at::Tensor> latents;
  for (const at::Tensor& picture : *pictures) {
    const Inputs one = {{"picture", within(picture, height, width)}};
    latents.push_back(model_.encode_latents(one, "picture", runner).at("latents"));
  }
  return {{kVaceReferences, at::cat(latents, 1)}};
}

at::Tensor VaceInputs::encode_leading(const Inputs& values, Conditioning& made,
                                      atelier::BlockRunner& runner) {
  const at::Tensor clip = atelier::clip_input(values, "video");
  made.merge(encode_references(values, clip.size(2), clip.size(3), runner));
  const auto pictures = made.find(kVaceReferences);
  return pictures == made.end() ? at::Tensor() : pictures->second;
}

int64_t VaceInputs::leading_frames(const Conditioning& cond) const {
  const auto pictures = cond.find(kVaceReferences);
  return pictures == cond.end() ? 0 : pictures->second.size(1);
}

std::optional<Conditioning> VaceInputs::encode(const atelier::EncodeInputs& in,
                                               atelier::BlockRunner& runner) {
  if (in.stage != "vace") return std::nullopt;
  const int64_t F = in.target.frames, H = in.target.height, W = in.target.width;
  Conditioning made = encode_references(in.values, H, W, runner);
  const at::TensorOptions options = options_of(in.values);
  const bool has_video = in.values.contains(kVideo), has_mask = in.values.contains(kMask);
  const at::Tensor mask =
      has_mask ? atelier::clip_input(in.values, kMask, 1) : at::ones({1, F, H, W}, options);
  const at::Tensor is_new = mask.gt(0.5).to(options.dtype());
  const at::Tensor video =
      has_video ? atelier::clip_input(in.values, kVideo) : at::zeros({3, F, H, W}, options);
  const at::Tensor kept = model_.latents_of(video * (1 - is_new), runner);
  const at::Tensor changed = has_video ? model_.latents_of(video * is_new, runner) : kept;
  made.emplace(kVaceClip, at::cat({kept, changed, mask_channels(mask).to(kept.options())}));
  if (const auto* scale = atelier::find_input<std::vector<double>>(in.values, kScale))
    made.emplace(kVaceScale, at::tensor(*scale, at::kDouble).to(at::kFloat));
  return made;
}

std::optional<at::Tensor> VaceInputs::denoise(const atelier::DenoiseInputs& in,
                                              atelier::BlockRunner& runner) {
  const auto follows = [](const Conditioning* cond) { return cond->contains(kVaceClip); };
  if (std::ranges::none_of(in.cond, follows)) return std::nullopt;
  VaceHints hints(model_.loaded<Vace>(in.denoiser == "dit2" ? "vace2" : "vace"), in);
  const Dit::With with(model_.loaded<Dit>(in.denoiser), hints);
  return model_.denoise_alone(in, runner);
}

}  // namespace wan
