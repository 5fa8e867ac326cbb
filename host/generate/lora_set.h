// The LoRAs that requests name, put into a model and taken out of it again.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "host/lora/registry.h"
#include "host/model/model_loader.h"
#include "host/order/settings.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"

namespace atelier::generate {

// The model's layers are looked through when the first LoRA is named. Not thread-safe.
class LoraSet {
 public:
  // `model` and `progress` outlive it.
  LoraSet(model::LoadedModel& model, lora::Mode mode, progress::Progress& progress)
      : model_(model), mode_(mode), progress_(progress) {}

  // Adds a problem for each LoRA of `settings` that does not fit the model. Reads no values.
  void check(const order::Settings& settings, const order::Origin& place,
             report::Problems& problems);

  // Makes `loras` those of the model, and no others. Names in a file that are nothing in the model
  // are told once.
  void use(const std::vector<lora::LoraRef>& loras);

  // What Request::encoder_state is with these LoRAs.
  std::string encoder_state(const order::Settings& settings);

 private:
  lora::Registry& registry();

  model::LoadedModel& model_;
  lora::Mode mode_;
  progress::Progress& progress_;
  std::optional<lora::Registry> registry_;
  std::set<std::string> warned_;  // files
};

}  // namespace atelier::generate
