// What Video-As-Prompt is given: a clip, whose frames are taken evenly, and what is seen in it.
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

}  // namespace

std::vector<int64_t> Wan::vap_ids(const atelier::EncodeInputs& in) const {
  const auto* given = atelier::find_input<std::string>(in.values, kVapPrompt);
  return prompt_ids(tokenizer(), given != nullptr ? *given : std::string());
}

atelier::Conditioning Wan::encode_vap(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner) {
  if (!in.values.contains(kVapVideo))
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "vap_prompt: it says what is seen in a clip, and there is none",
                         "give the clip as vap_video, or leave the text out");
  if (in.stage == "vap_text") return {{kVapEmbeds, encode_cut(vap_ids(in), runner)}};
  const at::Tensor whole = atelier::clip_input(in.values, kVapVideo);
  if (in.stage == "vap_image") {
    const auto& encoder = loaded<atelier::parts::ClipVision>("image_encoder");
    return {{kVapImage, encoder.forward(whole.select(1, 0), runner)}};
  }
  const at::Tensor clip = evenly(whole, in.target.frames);
  return {{kVapClip, encode_latents({{"clip", clip}}, "clip", runner).at("latents")}};
}

// The frames of the clip that are known in the one that is made.
at::Tensor Wan::vap_known(const atelier::EncodeInputs& in, bool has_last,
                          atelier::BlockRunner& runner) {
  const at::Tensor clip = atelier::clip_input(in.values, kVapVideo);
  const at::Tensor last = clip.narrow(1, clip.size(1) - 1, 1);
  return known_clip(clip.narrow(1, 0, 1), has_last ? last : at::Tensor(), in.target, runner);
}

}  // namespace wan
