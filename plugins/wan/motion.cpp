#include "motion.h"

#include <ATen/ATen.h>

#include "atelier/nn/waves.h"
#include "atelier/part_view.h"

namespace wan {

using atelier::Detection;
using atelier::PartView;

namespace {

constexpr double kMotionScale = 10.0;  // of the number before its waves
constexpr int64_t kModulations = 6;    // rows that a block is modulated by

}  // namespace

MotionController::MotionController(const MotionConfig& c)
    : Module(nullptr, ""),
      channels_(c.channels),
      in_(this, "linear.0", c.channels, c.width),
      middle_(this, "linear.2", c.width, c.width),
      out_(this, "linear.4", c.width, kModulations * c.width) {}

at::Tensor MotionController::forward(const at::Tensor& motion_B) const {
  const at::Tensor waves = atelier::nn::time_channels(motion_B * kMotionScale, channels_);
  const at::Tensor rows = in_.forward(waves.to(in_.weight->draw().scalar_type()));
  return out_.forward(at::silu(middle_.forward(at::silu(rows))));
}

std::optional<Detection> detect_motion(const atelier::TensorIndex& checkpoint) {
  constexpr const char *kIn = "linear.0.weight", *kOut = "linear.4.weight";
  if (!checkpoint.contains(kIn) || !checkpoint.contains(kOut)) return std::nullopt;
  const PartView view(checkpoint, "", "motion controller");
  const MotionConfig config = {.channels = view.dim(kIn, 1), .width = view.dim(kIn, 0)};
  if (view.dim(kOut, 0) != kModulations * config.width) return std::nullopt;
  view.refuse_quantised();
  return atelier::detection_of("motion_controller", "original", config);
}

atelier::ConfigFields motion_fields(const Detection&) {
  return {};
}

atelier::WeightMap motion_map(const Detection& part) {
  return atelier::named_weights(*atelier::make_part<MotionController, MotionConfig>(part));
}

}  // namespace wan
