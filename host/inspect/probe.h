// One component on named tensors, to compare its numbers with another implementation.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "host/model/model_loader.h"

namespace atelier::inspect {

// What the component gives for `inputs`.
NamedTensors probe_component(model::LoadedModel& model, const std::string& component,
                             const NamedTensors& inputs);

// Probes with the gradients of half the sum of all squared outputs: "grad." before the name of
// each input, and of each published tensor that the glob `trainable` names; empty: none. Throws
// Error{kInvalidArgument} when it names none.
NamedTensors probe_gradients(model::LoadedModel& model, const std::string& component,
                             const NamedTensors& inputs, const std::string& trainable);

// The noise levels of a request: an object with height, width, num_inference_steps, schedule,
// variant, denoising_strength, flow_shift and sigmas, each of which may be left out. `place` names
// it in messages.
std::vector<float> probe_schedule(model::LoadedModel& model, const nlohmann::json& request,
                                  const std::string& place);

}  // namespace atelier::inspect
