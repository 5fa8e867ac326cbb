// What a model with real weights has to keep, seen in its pictures.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "host/conformance/conformance.h"
#include "host/model/model_loader.h"

namespace atelier::conformance {

struct PictureOptions {
  std::string prompt, other_prompt;       // of pictures that look different
  std::optional<int64_t> height, width;   // pixels; what the model is for when absent
  std::optional<int64_t> num_steps = {};  // of the family's schedule when absent
};

// Draws a few pictures and runs every check on them, in order. What a check throws is its finding.
void check_pictures(model::LoadedModel& model, const PictureOptions& options,
                    const std::function<void(const Finding&)>& report);

}  // namespace atelier::conformance
