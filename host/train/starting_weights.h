// Weights that a run begins with in place of the model's own (--resume_from_checkpoint).
#pragma once

#include <string>

#include "host/checkpoint/checkpoint.h"
#include "host/checkpoint/model_loader.h"
#include "host/checkpoint/weight_binding.h"

namespace atelier::train {

// A safetensors file with one whole component, as full training saves it.
class StartingWeights {
 public:
  // Reads the header and binds it to the component's weights. Throws Error naming the file and what
  // does not fit; a LoRA is refused with the flag to use.
  StartingWeights(checkpoint::LoadedModel& model, const std::string& path);

  const std::string& component() const { return component_; }

  // Fills the component's weights, which are loaded.
  void load() const;

 private:
  checkpoint::LoadedModel& model_;
  checkpoint::Checkpoint checkpoint_;
  std::string component_;
  checkpoint::WeightBinding binding_;
};

}  // namespace atelier::train
