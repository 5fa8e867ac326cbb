// What Video-As-Prompt is given: a clip, whose frames are taken evenly, and what is seen in it.
#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/parts/clip.h"

#include "model.h"
#include "prompt.h"
#include "vap.h"

namespace wan {

namespace {

constexpr const char* kVapPrompt = "vap_prompt";

// As many frames as are made, from the first one to the last.
at::Tensor evenly(const at::Tensor& clip_CTHW, int64_t frames) {
  const auto last = static_cast<double>(clip_CTHW.size(1) - 1);
  const at::Tensor numbers = at::linspace(0, last, frames, at::kFloat).to(at::kLong);
  return clip_CTHW.index_select(1, numbers.to(clip_CTHW.device()));
}

void check_clip(const atelier::Inputs& inputs) {
  for (const char* text : {kVapPrompt, "negative_vap_prompt"}) {
    if (inputs.contains(text) && !inputs.contains(kVapVideo))
      throw atelier::Error(
          atelier::ErrorCode::kInvalidArgument,
          std::string(text) + ": it says what is seen in a clip, and there is none",
          "give the clip as vap_video, or leave the text out");
  }
}

}  // namespace

std::vector<int64_t> VapInputs::vap_ids(const atelier::EncodeInputs& in) const {
  const auto* given = atelier::find_input<std::string>(in.values, kVapPrompt);
  return prompt_ids(model_.tokenizer(), given != nullptr ? *given : std::string());
}

std::optional<std::vector<int64_t>> VapInputs::ids(const atelier::EncodeInputs& in) const {
  if (in.stage != "vap_text") return std::nullopt;
  return vap_ids(in);
}

std::optional<atelier::Conditioning> VapInputs::encode(const atelier::EncodeInputs& in,
                                                       atelier::BlockRunner& runner) {
  using atelier::Conditioning;
  if (in.stage == "given_clip" && in.values.contains(kVapVideo)) {
    Conditioning made = model_.encode_given(in, runner);
    made[kVapKnown] = known(in, runner);
    return made;
  }
  if (!in.stage.starts_with("vap")) return std::nullopt;
  check_clip(in.values);
  if (in.stage == "vap_text")
    return Conditioning{{kVapEmbeds, model_.encode_cut(vap_ids(in), runner)}};
  const at::Tensor whole = atelier::clip_input(in.values, kVapVideo);
  if (in.stage == "vap_image") {
    const auto& encoder = model_.loaded<atelier::parts::ClipVision>("image_encoder");
    return Conditioning{{kVapImage, encoder.forward(whole.select(1, 0), runner)}};
  }
  const at::Tensor clip = evenly(whole, in.target.frames);
  return Conditioning{{kVapClip, model_.latents_of(clip, runner)}};
}

// The frames of the clip that are known in the one that is made.
at::Tensor VapInputs::known(const atelier::EncodeInputs& in, atelier::BlockRunner& runner) {
  const at::Tensor clip = atelier::clip_input(in.values, kVapVideo);
  const bool has_last = in.values.contains("end_image");
  const at::Tensor last = has_last ? clip.narrow(1, clip.size(1) - 1, 1) : at::Tensor();
  return model_.known_clip(clip.narrow(1, 0, 1), last, in.target, runner);
}

atelier::MediaTarget VapInputs::target(const atelier::Inputs& inputs,
                                       const atelier::MediaTarget& asked) const {
  check_clip(inputs);
  atelier::MediaTarget made = asked;
  if (inputs.contains(kVapVideo) && made.frames == 0) made.frames = kVapFrames;
  return made;
}

std::optional<at::Tensor> VapInputs::denoise(const atelier::DenoiseInputs& in,
                                             atelier::BlockRunner& runner) {
  const auto is_shown = [](const atelier::Conditioning* cond) { return cond->contains(kVapClip); };
  if (std::ranges::none_of(in.cond, is_shown)) return std::nullopt;
  if (!std::ranges::all_of(in.cond, is_shown))
    throw atelier::Error(atelier::ErrorCode::kUnsupported,
                         "samples with a vap_video and without one are in one batch",
                         "use a batch of 1, or give every row a vap_video");
  VapBranch branch(model_.loaded<Vap>("vap"));
  const Dit::With with(model_.loaded<Dit>(in.denoiser), branch);
  return model_.denoise_alone(in, runner);
}

}  // namespace wan
