// What a model with real weights has to keep, seen in its images.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "host/conformance/conformance.h"
#include "host/model/model_loader.h"

namespace atelier::conformance {

struct ImageOptions {
  std::string prompt, other_prompt;       // of images that look different
  std::optional<int64_t> height, width;   // pixels; what the model is for when absent
  std::optional<int64_t> num_steps = {};  // of the family's schedule when absent
};

// Draws a few images and runs every check on them, in order. What a check throws is its finding.
void check_images(model::LoadedModel& model, const ImageOptions& options,
                  const std::function<void(const Finding&)>& report);

}  // namespace atelier::conformance
