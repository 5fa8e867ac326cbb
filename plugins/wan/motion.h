// Speed control of Wan2.1-T2V-1.3B: a number says how much moves in the clip.
#pragma once

#include <optional>

#include "atelier/component_family.h"
#include "atelier/nn/layers.h"

namespace wan {

// Conditioning: how much moves, float32 [1]; and what that adds to the projected time of the
// denoiser, [6 width], which the model makes of it.
inline constexpr const char *kMotion = "motion", *kMotionRows = "motion_rows";

struct MotionConfig {
  int64_t channels, width;  // of the number's waves, and of the denoiser
  template <class Fields>
  void visit(Fields&& fields) {
    fields("channels", channels), fields("width", width);
  }
};

// Weights are called as the published file calls them.
class MotionController final : public atelier::nn::Module {
 public:
  explicit MotionController(const MotionConfig& config);

  // motion_B: float32 [B], from 0 to 100 as published. Returns [B, 6 width].
  at::Tensor forward(const at::Tensor& motion_B) const;

 private:
  int64_t channels_;
  atelier::nn::Linear in_, middle_, out_;
};

std::optional<atelier::Detection> detect_motion(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields motion_fields(const atelier::Detection& part);
atelier::WeightMap motion_map(const atelier::Detection& part);

}  // namespace wan
