#include "host/generate/walk.h"

#include <string>

namespace atelier::generate {
namespace {

std::string label_of(const Walk& walk, bool is_part) {
  const Trajectory& trajectory = walk.trajectory;
  const size_t num_images = trajectory.request().seeds.size();
  const auto count = static_cast<size_t>(trajectory.count());
  std::string label = "denoise";
  if (num_images > 1) {
    label += " image " + std::to_string(trajectory.first() + 1);
    if (count > 1) label += "-" + std::to_string(trajectory.first() + count);
    label += "/" + std::to_string(num_images);
  }
  return is_part ? label + " with " + walk.denoiser().name() : label;
}

}  // namespace

void Walk::begin_line(progress::Progress& progress) {
  if (line) return;
  const int64_t steps = in_parts ? trajectory.steps_of_denoiser() : trajectory.steps();
  line = std::make_unique<progress::Step>(progress, label_of(*this, steps < trajectory.steps()),
                                          steps, progress::Unit::kSteps);
}

void Walk::advance_line(const model::RangedDenoiser& made_by) {
  line->advance();
  if (!trajectory.is_through() && (!in_parts || &denoiser() == &made_by)) return;
  line->finish();
  line = nullptr;
}

}  // namespace atelier::generate
