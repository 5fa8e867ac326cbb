// Weights that a run begins with in place of the model's own (--resume_from_checkpoint).
#pragma once

#include <functional>
#include <string>

#include "host/files/checkpoint.h"
#include "host/model/model_loader.h"
#include "host/progress/progress.h"
#include "host/weights/weight_binding.h"

namespace atelier::parameters {

// A safetensors file with one whole component, as full training saves it.
class StartingWeights {
 public:
  // Reads the header and binds it to the component's weights. `hints`: what the user said of files,
  // which may be about this one. Throws Error naming the file and what does not fit; a LoRA is
  // refused with the flag to use.
  StartingWeights(model::LoadedModel& model, const std::string& path,
                  const model::DetectHints& hints);

  const std::string& component() const { return component_; }

  // Fills the component's weights with a line of progress, in the place of those that are there if
  // it is loaded; `on_bytes` is called while they are read.
  void load(progress::Progress& progress, const std::function<void()>& on_bytes) const;

 private:
  model::LoadedModel& model_;
  files::Checkpoint checkpoint_;
  std::string component_;
  weights::WeightBinding binding_;
};

}  // namespace atelier::parameters
