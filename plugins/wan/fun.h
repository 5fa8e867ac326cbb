// Wan-Fun of VideoX-Fun: what follows a control clip and a reference. Its camera is in camera.h.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"
#include "atelier/part_view.h"

#include "addition.h"
#include "config.h"
#include "variant.h"

namespace wan {

// Conditioning of models that follow a control clip: its latents, [control_channels, T, H, W], and
// those of an image that is shown, [C, H, W]. What a sample lacks is zero.
inline constexpr const char *kControlClip = "control_clip", *kReference = "reference_latents";

// Stages that encode what only Wan-Fun is given, see Wan::encode().
inline constexpr std::string_view kShownStage = "shown_image", kControlStage = "control_clip",
                                  kReferenceStage = "reference", kStartStage = "start_image",
                                  kCameraStage = "camera";

// Its experts of Wan 2.2.
inline constexpr std::string_view kControlExperts = "wan2.2-fun-control-a14b",
                                  kCameraExperts = "wan2.2-fun-camera-a14b";

// Says in `config` what a Fun DiT has beside others, where it is one. `given_channels` holds all
// channels beside the latents before, and those of what is known of the clip after. Throws
// Error{kUnsupported} for one that is not run.
void read_fun(const atelier::PartView& view, DitConfig& config);
// Nothing: it is no Fun DiT.
std::optional<std::string_view> fun_variant(const DitConfig& config);

// Rows of the images that samples are shown: one row of zeros stands for an image that is not
// there. Published models see as many of them as an image has, all alike; the sum that attention
// makes of those is what one alone gives.
atelier::PackedRows shown_rows(const atelier::DenoiseInputs& in, int64_t width);

// A frame in front of the clip, at position 0, which is no part of it.
class ReferenceFrame final : public Addition {
 public:
  ReferenceFrame(atelier::nn::Module* parent, const DitConfig& config);
  ~ReferenceFrame() override;

  std::vector<Stretch> front(const atelier::DenoiseInputs& in, int64_t sample) override;
  // The reference is frame 0.
  at::Tensor frame_positions(const at::Tensor& counted_T) const override;

 private:
  int64_t head_dim_;
  atelier::nn::Conv2d patches_;
};

// What it is given.
class FunInputs final : public Variant {
 public:
  using Variant::Variant;
  ~FunInputs() override = default;

  std::optional<atelier::Conditioning> encode(const atelier::EncodeInputs& in,
                                              atelier::BlockRunner& runner) override;
  // What is asked. Throws where a camera has no lens, or is nowhere.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
};

}  // namespace wan
