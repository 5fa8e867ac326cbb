// What of a model is trained, found by name before any weight is read.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "atelier/nn/layers.h"

#include "host/model/model_loader.h"
#include "host/order/training.h"
#include "host/report/problems.h"

namespace atelier::parameters {

struct Selection {
  // A weight that is trained itself.
  struct TrainedWeight {
    std::string component, path;
    Weight* weight;
  };
  // A linear layer that gets a LoRA.
  struct AdaptedLayer {
    std::string component, path;
    nn::Linear* linear;
  };
  std::vector<TrainedWeight> weights = {};
  std::vector<AdaptedLayer> layers = {};
  // The controls that run beside denoisers: the rows have inputs that are for them.
  std::set<std::string> controls = {};

  // Whether anything of `component` is trained.
  bool trains(std::string_view component) const;
};

// Reads config.trainable_models and config.lora against the modules of `model`; weights need not be
// loaded. Names that mean nothing become problems, with the nearest one.
Selection select_trained(model::LoadedModel& model, const order::Training& config,
                         report::Problems& problems);

// The denoiser in whose steps a component runs: its own name, or for a control that of the denoiser
// beside it. Empty: no such component.
std::string denoiser_of(const model::LoadedModel& model, std::string_view component);

// The denoisers that training runs: those that are trained or beside a trained control, or all
// where none is.
std::vector<model::RangedDenoiser> running_denoisers(const model::LoadedModel& model,
                                                     const Selection& selection);
// They, their controls and everything that is trained: what a step runs, and what is loaded as long
// as there are steps.
std::set<std::string> running_components(const model::LoadedModel& model,
                                         const Selection& selection);

}  // namespace atelier::parameters
