#include "model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/parts/clip.h"

#include "animate2.h"
#include "dancer.h"
#include "dit.h"
#include "motion.h"
#include "prompt.h"
#include "vace.h"

namespace wan {

using atelier::parts::ClipVision;

namespace {

constexpr const char *kFirstImage = "input_image", *kLastImage = "end_image";
constexpr const char *kFreeFrames = "free_frames", *kMotionInput = "motion_bucket_id";

int64_t latent_frames(const atelier::MediaTarget& target) {
  return (target.frames - 1) / kFrameStride + 1;
}

constexpr std::string_view kNegativePrompt =
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低"
    "质量，"
    "JPEG压缩残留，丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态"
    "畸形的肢体，"
    "手指融合，静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走";

// Frames of the latents that are no part of the clip, in front of it.
int64_t leading_frames(const atelier::Conditioning& cond) {
  const auto pictures = cond.find(kVaceReferences);
  if (pictures != cond.end()) return pictures->second.size(1);
  return cond.contains(kDrivingClip) || cond.contains(kLeadingFrames) ? 1 : 0;
}

}  // namespace

Wan::Wan(std::span<const atelier::ComponentRow> rows, std::span<const atelier::Detection> parts,
         const atelier::ModelOptions& options, const atelier::LatentSpec& latents,
         std::string variant)
    : ComponentModel(rows, parts, options, latents),
      variant_(std::move(variant)),
      vace_blocks_(check_vace(parts)) {}

Wan::~Wan() = default;

std::vector<int64_t> Wan::ids_of(const atelier::EncodeInputs& in) const {
  const std::string& given = atelier::text_input(in.values, "prompt");
  return prompt_ids(tokenizer(), in.is_negative && given.empty() ? kNegativePrompt : given);
}

atelier::Conditioning Wan::encode(const atelier::EncodeInputs& in, atelier::BlockRunner& runner) {
  if (in.stage == "latents" && variant_ == kDancerGlobal) return encode_pictures(in, runner);
  if (in.stage == "latents") return encode_target(in, runner);
  if (in.stage == "images" || in.stage == "first_image") return encode_images(in, runner);
  if (in.stage == "given_clip") return encode_given(in, runner);
  if (in.stage == "first_frame") return encode_first(in, runner);
  if (in.stage == "vace") return encode_vace(in, runner);
  if (in.stage == "driven_image" || in.stage.starts_with("driving"))
    return encode_animate2(in, runner);
  if (auto encoded = encode_fun(in, runner)) return *std::move(encoded);
  if (in.stage == "motion") {
    const auto* motion = atelier::find_input<double>(in.values, kMotionInput);
    return {{kMotion, at::tensor({static_cast<float>(*motion)})}};
  }
  if (in.stage == "music") return encode_music(in);
  if (in.stage == "dancer") return encode_dancer(in, runner);
  if (in.stage == "keyframes") return encode_keyframes(in, runner);
  atelier::Conditioning made = encode_text(in, runner);
  if (in.is_negative && is_dancer()) made[kSkipsBlock] = at::ones({1});
  return made;
}

void Wan::decode(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner,
                 const atelier::FrameSink& sink) {
  if (variant_ == kDancerGlobal) return decode_pictures(latents_BCTHW, runner, sink);
  ComponentModel::decode(latents_BCTHW, runner, sink);
}

atelier::Conditioning Wan::encode_images(const atelier::EncodeInputs& in,
                                         atelier::BlockRunner& runner) {
  const auto& clip = loaded<ClipVision>("image_encoder");
  std::vector<at::Tensor> rows;
  for (const char* name : {kFirstImage, kLastImage}) {
    if (const auto* image = atelier::find_input<at::Tensor>(in.values, name))
      rows.push_back(clip.forward(*image, runner));
  }
  return {{kImageEmbeds, at::cat(rows)}};
}

atelier::Conditioning Wan::encode_given(const atelier::EncodeInputs& in,
                                        atelier::BlockRunner& runner) {
  const bool has_first = in.values.contains(kFirstImage);
  const at::Tensor some =
      atelier::clip_input(in.values, has_first ? kFirstImage : kLastImage);  // [3, 1, H, W]
  const int64_t frames = in.target.frames, T = latent_frames(in.target);
  at::Tensor clip = at::zeros({3, frames, some.size(2), some.size(3)}, some.options());
  // Whether a frame is known; the first one counts as many as a latent frame has.
  at::Tensor known = at::zeros({T * kFrameStride}, some.options());
  if (has_first) {
    clip.narrow(1, 0, 1).copy_(some);
    known.narrow(0, 0, kFrameStride).fill_(1);
  }
  if (in.values.contains(kLastImage) && frames > 1) {
    clip.narrow(1, frames - 1, 1).copy_(atelier::clip_input(in.values, kLastImage));
    known.narrow(0, known.size(0) - 1, 1).fill_(1);
  }
  const at::Tensor latents = encode_latents({{"clip", clip}}, "clip", runner).at("latents");
  const at::Tensor mask = known.view({T, kFrameStride, 1, 1})
                              .transpose(0, 1)
                              .expand({-1, -1, latents.size(2), latents.size(3)});
  return {{kGivenClip, at::cat({mask.to(latents.options()), latents})}};
}

atelier::Conditioning Wan::encode_first(const atelier::EncodeInputs& in,
                                        atelier::BlockRunner& runner) {
  if (in.target.frames == 1) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "input_image: a clip of one frame is the image itself",
                         "make 5 frames or more, or leave the image out");
  }
  const at::Tensor first = encode_latents(in.values, kFirstImage, runner).at("latents");
  at::Tensor free = at::ones({latent_frames(in.target)}, first.options());
  free.narrow(0, 0, 1).zero_();
  return {{kFirstFrame, first}, {kFreeFrames, free}};
}

// Latents of pictures stand in front of those of the clip that is learnt.
atelier::Conditioning Wan::encode_target(const atelier::EncodeInputs& in,
                                         atelier::BlockRunner& runner) {
  const at::Tensor clip = atelier::clip_input(in.values, "video");
  atelier::Conditioning made = encode_references(in.values, clip.size(2), clip.size(3), runner);
  at::Tensor leading = made.empty() ? at::Tensor() : made.at(kVaceReferences);
  if (in.values.contains("animate2_reference_image")) {
    leading = leading_image(in.values, runner);
    made[kLeadingFrames] = at::ones({1}, at::kLong);
  }
  at::Tensor latents = encode_latents(in.values, "video", runner).at("latents");
  if (leading.defined()) latents = at::cat({leading, latents}, 1);
  made.emplace("latents", latents);
  return made;
}

atelier::MediaTarget Wan::target(const atelier::Inputs& inputs,
                                 const atelier::MediaTarget& asked) const {
  if (is_dancer()) check_dance(inputs, asked);
  return driven_target(inputs, vace_target(inputs, asked));
}

std::vector<int64_t> Wan::latent_shape(const atelier::MediaTarget& target,
                                       const atelier::Conditioning& cond) const {
  std::vector<int64_t> shape = ComponentModel::latent_shape(target, cond);
  shape[1] += leading_frames(cond);
  return shape;
}

atelier::FinishedLatents Wan::to_decode(const at::Tensor& latents_BCTHW,
                                        const atelier::Conditioning& cond) const {
  const int64_t leading = leading_frames(cond);
  return {.latents_BCTHW = latents_BCTHW.narrow(2, leading, latents_BCTHW.size(2) - leading)};
}

at::Tensor Wan::denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  const auto follows = [](const atelier::Conditioning* cond) { return cond->contains(kVaceClip); };
  if (std::ranges::any_of(in.cond, follows)) return denoise_beside_vace(in, runner);
  const auto moves = [](const atelier::Conditioning* cond) { return cond->contains(kMotion); };
  if (std::ranges::none_of(in.cond, moves)) return ComponentModel::denoise(in, runner);
  const auto& controller = loaded<MotionController>("motion_controller");
  std::vector<atelier::Conditioning> moved;
  for (const atelier::Conditioning* cond : in.cond) {
    moved.push_back(*cond);
    if (moves(cond)) {
      const at::Tensor motion = atelier::named_tensor(*cond, kMotion, 1);
      moved.back()[kMotionRows] = controller.forward(motion.to(in.x_BCTHW.device(), at::kFloat))[0];
    }
  }
  std::vector<const atelier::Conditioning*> pointers;
  for (const atelier::Conditioning& cond : moved) pointers.push_back(&cond);
  atelier::DenoiseInputs with_rows = in;
  with_rows.cond = pointers;
  return ComponentModel::denoise(with_rows, runner);
}

std::optional<atelier::GivenLatents> Wan::given(const atelier::Conditioning& cond,
                                                at::IntArrayRef) const {
  const auto first = cond.find(kFirstFrame);
  if (first == cond.end()) return std::nullopt;
  const at::Tensor& values = first->second;
  const at::Tensor& free = atelier::named_tensor(cond, kFreeFrames, 1);
  const int64_t T = free.size(0), H = values.size(2), W = values.size(3);
  return atelier::GivenLatents{.values_CTHW = values.expand({-1, T, H, W}),
                               .free_1THW = free.view({1, T, 1, 1}).expand({1, T, H, W})};
}

atelier::Conditioning Wan::encode_text(const atelier::EncodeInputs& in,
                                       atelier::BlockRunner& runner) {
  return {{atelier::kPromptEmbeds, encode_cut(ids_of(in), runner)}};
}

// [L, text_width] of a text's tokens, of which those behind the limit are cut off.
at::Tensor Wan::encode_cut(std::vector<int64_t> ids, atelier::BlockRunner& runner) {
  cut_to_limit(ids, {.tokens = std::ssize(ids), .limit = kMaxPromptTokens});
  ids.back() = end_token(tokenizer());
  return encode_ids("text_encoder", ids, runner);
}

atelier::NamedTensors Wan::probe(std::string_view component, const atelier::NamedTensors& inputs,
                                 atelier::BlockRunner& runner) {
  if (component == "motion_controller") {
    atelier::allow_only(inputs, {kMotion});
    const at::Tensor& motion = atelier::named_tensor(inputs, kMotion, 1);
    return {{kMotionRows, loaded<MotionController>(component).forward(motion)}};
  }
  if (component.starts_with("vace")) return loaded<Vace>(component).probe(inputs, runner);
  if (component != "image_encoder") return ComponentModel::probe(component, inputs, runner);
  const auto& clip = loaded<ClipVision>(component);
  atelier::allow_only(inputs, {"image"});
  std::vector<at::Tensor> rows;
  for (const at::Tensor& image : atelier::named_tensor(inputs, "image", 4).unbind(0))
    rows.push_back(clip.forward(image, runner));
  return {{kImageEmbeds, at::stack(rows)}};
}

std::vector<int64_t> Wan::tokenize(std::string_view text) const {
  std::vector<int64_t> ids = prompt_ids(tokenizer(), text);
  if (std::ssize(ids) > kMaxPromptTokens) ids.resize(kMaxPromptTokens);
  ids.back() = end_token(tokenizer());
  return ids;
}

atelier::TextLength Wan::text_length(const atelier::EncodeInputs& in) const {
  const auto ids = in.stage == "driving_text" ? driving_ids(in) : ids_of(in);
  return {.tokens = std::ssize(ids), .limit = kMaxPromptTokens};
}

}  // namespace wan
