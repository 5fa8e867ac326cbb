#include "model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/parts/clip.h"
#include "atelier/parts/wav2vec2.h"

#include "animate.h"
#include "animate2.h"
#include "dancer.h"
#include "dit.h"
#include "fun.h"
#include "longcat.h"
#include "motion.h"
#include "prompt.h"
#include "s2v_stages.h"
#include "vace.h"
#include "vap.h"

namespace wan {

using atelier::parts::ClipVision;
using atelier::parts::Wav2Vec2;

namespace {

constexpr const char *kFirstImage = "input_image", *kLastImage = "end_image";
constexpr const char* kMotionInput = "motion_bucket_id";

constexpr std::string_view kNegativePrompt =
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低"
    "质量，"
    "JPEG压缩残留，丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态"
    "畸形的肢体，"
    "手指融合，静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走";

}  // namespace

Wan::Wan(std::span<const atelier::ComponentRow> rows, std::span<const atelier::Detection> parts,
         const atelier::ModelOptions& options, const atelier::LatentSpec& latents)
    : ComponentModel(rows, parts, options, latents) {
  variants_.push_back(std::make_unique<FunInputs>(*this));
  variants_.push_back(std::make_unique<VaceInputs>(*this, parts));
  variants_.push_back(std::make_unique<DrivenInputs>(*this));
  variants_.push_back(std::make_unique<AnimateInputs>(*this, parts));
  variants_.push_back(std::make_unique<VapInputs>(*this));
  variants_.push_back(std::make_unique<LongCatInputs>(*this, parts));
  variants_.push_back(std::make_unique<SpeechInputs>(*this, parts));
  variants_.push_back(std::make_unique<DancerInputs>(*this));
}

Wan::~Wan() = default;

std::vector<int64_t> Wan::ids_of(const atelier::EncodeInputs& in) const {
  const std::string& given = atelier::text_input(in.values, "prompt");
  if (!in.is_negative || !given.empty()) return prompt_ids(tokenizer(), given);
  std::string_view published = kNegativePrompt;
  for (const auto& variant : variants_) {
    if (const std::string_view own = variant->negative_prompt(); !own.empty()) published = own;
  }
  return prompt_ids(tokenizer(), published);
}

atelier::Conditioning Wan::encode(const atelier::EncodeInputs& in, atelier::BlockRunner& runner) {
  for (const auto& variant : variants_) {
    if (auto encoded = variant->encode(in, runner)) return *std::move(encoded);
  }
  if (in.stage == "latents") return encode_target(in, runner);
  if (in.stage == "images" || in.stage == "first_image") return encode_images(in, runner);
  if (in.stage == "given_clip") return encode_given(in, runner);
  if (in.stage == "first_frame") return encode_first(in, runner);
  if (in.stage == "motion") {
    const auto* motion = atelier::find_input<double>(in.values, kMotionInput);
    return {{kMotion, at::tensor({static_cast<float>(*motion)})}};
  }
  return encode_text(in, runner);
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
  const auto image_of = [&](const char* name) {
    return in.values.contains(name) ? atelier::clip_input(in.values, name) : at::Tensor();
  };
  return {{kGivenClip, known_clip(image_of(kFirstImage), image_of(kLastImage), in.target, runner)}};
}

at::Tensor Wan::latents_of(const at::Tensor& clip_CFHW, atelier::BlockRunner& runner) {
  return encode_latents({{"clip", clip_CFHW}}, "clip", runner).at("latents");
}

at::Tensor Wan::known_clip(const at::Tensor& first, const at::Tensor& last,
                           const atelier::MediaTarget& target, atelier::BlockRunner& runner) {
  const at::Tensor& some = first.defined() ? first : last;
  const int64_t frames = target.frames, T = latent_frames_of(frames);
  at::Tensor clip = at::zeros({3, frames, some.size(2), some.size(3)}, some.options());
  // Whether a frame is known; the first one counts as many as a latent frame has.
  at::Tensor known = at::zeros({T * kFrameStride}, some.options());
  if (first.defined()) {
    clip.narrow(1, 0, 1).copy_(first);
    known.narrow(0, 0, kFrameStride).fill_(1);
  }
  if (last.defined() && frames > 1) {
    clip.narrow(1, frames - 1, 1).copy_(last);
    known.narrow(0, known.size(0) - 1, 1).fill_(1);
  }
  const at::Tensor latents = latents_of(clip, runner);
  const at::Tensor mask = known.view({T, kFrameStride, 1, 1})
                              .transpose(0, 1)
                              .expand({-1, -1, latents.size(2), latents.size(3)});
  return at::cat({mask.to(latents.options()), latents});
}

atelier::Conditioning Wan::encode_first(const atelier::EncodeInputs& in,
                                        atelier::BlockRunner& runner) {
  if (in.target.frames == 1) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "input_image: a clip of one frame is the image itself",
                         "make 5 frames or more, or leave the image out");
  }
  return {{kFirstFrame, encode_latents(in.values, kFirstImage, runner).at("latents")}};
}

// What stands in front of the clip is learnt with it.
atelier::Conditioning Wan::encode_target(const atelier::EncodeInputs& in,
                                         atelier::BlockRunner& runner) {
  atelier::Conditioning made;
  std::vector<at::Tensor> latents;
  for (const auto& variant : variants_) {
    const at::Tensor leading = variant->encode_leading(in.values, made, runner);
    if (leading.defined()) latents.push_back(leading);
  }
  const at::Tensor clip = atelier::clip_input(in.values, "video");
  for (const at::Tensor& part : clip.split(makes_pictures() ? 1 : clip.size(1), 1))
    latents.push_back(latents_of(part, runner));
  made.emplace("latents", latents.size() == 1 ? latents.front() : at::cat(latents, 1));
  return made;
}

int64_t Wan::leading_frames(const atelier::Conditioning& cond) const {
  int64_t frames = 0;
  for (const auto& variant : variants_) frames += variant->leading_frames(cond);
  return frames;
}

atelier::MediaTarget Wan::target(const atelier::Inputs& inputs,
                                 const atelier::MediaTarget& asked) const {
  atelier::MediaTarget target = asked;
  for (const auto& variant : variants_) target = variant->target(inputs, target);
  return target;
}

std::vector<atelier::Piece> Wan::pieces(const atelier::Inputs& inputs,
                                        const atelier::MediaTarget& target) const {
  for (const auto& variant : variants_) {
    if (auto pieces = variant->pieces(inputs, target); !pieces.empty()) return pieces;
  }
  return {};
}

bool Wan::runs(std::string_view control, const atelier::Inputs& inputs, int64_t, int64_t) const {
  return std::ranges::all_of(variants_,
                             [&](const auto& variant) { return variant->runs(control, inputs); });
}

void Wan::prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                         atelier::BlockRunner& runner) {
  ComponentModel::prepare_levels(denoiser, sigmas, runner);
  for (const auto& variant : variants_) variant->prepare_levels(denoiser);
}

void Wan::forget_levels() {
  ComponentModel::forget_levels();
  for (const auto& variant : variants_) variant->forget_levels();
}

std::vector<int64_t> Wan::latent_shape(const atelier::MediaTarget& target,
                                       const atelier::Conditioning& cond) const {
  std::vector<int64_t> shape = ComponentModel::latent_shape(target, cond);
  shape[1] += leading_frames(cond);
  for (const auto& variant : variants_) shape[1] = variant->latent_frames(cond).value_or(shape[1]);
  return shape;
}

atelier::FinishedLatents Wan::to_decode(const at::Tensor& latents_BCTHW,
                                        const atelier::Conditioning& cond) const {
  for (const auto& variant : variants_) {
    if (auto finished = variant->to_decode(latents_BCTHW, cond)) return *std::move(finished);
  }
  const int64_t leading = leading_frames(cond);
  return {.latents_BCTHW = latents_BCTHW.narrow(2, leading, latents_BCTHW.size(2) - leading)};
}

void Wan::decode(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner,
                 const atelier::FrameSink& sink) {
  for (const at::Tensor& part :
       latents_BCTHW.split(makes_pictures() ? 1 : latents_BCTHW.size(2), 2))
    ComponentModel::decode(part, runner, sink);
}

at::Tensor Wan::look_squeezed(const at::Tensor& image_CHW, atelier::BlockRunner& runner) {
  const auto& clip = loaded<ClipVision>("image_encoder");
  const at::Tensor square = at::upsample_bicubic2d(image_CHW.to(at::kFloat).unsqueeze(0),
                                                   {clip.side(), clip.side()}, false)[0];
  return clip.look(square, runner);
}

at::Tensor Wan::denoise_alone(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  return ComponentModel::denoise(in, runner);
}

at::Tensor Wan::denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  for (const auto& variant : variants_) {
    if (auto velocity = variant->denoise(in, runner)) return *std::move(velocity);
  }
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

at::Tensor Wan::guide(const atelier::GuideInputs& in, atelier::BlockRunner& runner) {
  for (const auto& variant : variants_) {
    if (auto guided = variant->guide(in)) return *std::move(guided);
  }
  return ComponentModel::guide(in, runner);
}

std::optional<atelier::GivenLatents> Wan::given(const atelier::Conditioning& cond,
                                                at::IntArrayRef latents_CTHW) const {
  for (const auto& variant : variants_) {
    if (auto given = variant->given(cond, latents_CTHW)) return given;
  }
  const auto first = cond.find(kFirstFrame);
  if (first == cond.end()) return std::nullopt;
  const at::Tensor& values = first->second;
  const int64_t T = latents_CTHW[1], H = values.size(2), W = values.size(3);
  const at::Tensor free = at::ones({1, T - 1, H, W}, values.options());
  return atelier::GivenLatents{
      .values_CTHW = values.expand({-1, T, H, W}),
      .free_1THW = at::cat({at::zeros({1, 1, H, W}, values.options()), free}, 1)};
}

atelier::Conditioning Wan::encode_text(const atelier::EncodeInputs& in,
                                       atelier::BlockRunner& runner) {
  return {{atelier::kPromptEmbeds, encode_cut(ids_of(in), runner)}};
}

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
  if (component == kAnimateAdapter) return loaded<AnimateAdapter>(component).probe(inputs, runner);
  if (component == "audio_encoder") {
    atelier::allow_only(inputs, {"samples"});
    const at::Tensor& samples = atelier::named_tensor(inputs, "samples", 1);
    return {{"states", loaded<Wav2Vec2>(component).forward(
                           atelier::parts::normalised_sound(samples), runner)}};
  }
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
  for (const auto& variant : variants_) {
    if (const auto ids = variant->ids(in))
      return {.tokens = std::ssize(*ids), .limit = kMaxPromptTokens};
  }
  return {.tokens = std::ssize(ids_of(in)), .limit = kMaxPromptTokens};
}

}  // namespace wan
