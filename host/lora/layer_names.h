// What files call layers, as the component and the path that they stand for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

#include "host/lora/lora_file.h"
#include "host/lora/targets.h"
#include "host/model/model_loader.h"

namespace atelier::lora {

// Takes names apart, with a model by its layers and without one at the prefixes that files have.
// Underscores for dots ("lora_unet_blocks_0_to_q") can be told only by names that are known: those
// of the model, and the dotted ones of files that were learnt.
class LayerNames {
 public:
  // `model` may be null. Its weights need not be loaded. `component`: the one that names mean which
  // do not say it; where the model has none of that name, its first denoiser.
  explicit LayerNames(model::LoadedModel* model, std::string_view component = {});

  // Remembers the dotted names of a file.
  void learn(const LoraFile& file);

  struct Layer {
    std::string component, path;
    bool is_flat = false;  // what its underscores stand for is not known
  };
  // `name` is one of LoraFile::layers().
  Layer find(std::string_view name) const;

  // Throws Error{kInvalidArgument} for a file that is made for another model, and when the names
  // have to be split (`wants_dots`) and cannot be, naming them.
  void check(const LoraFile& file, bool wants_dots) const;

  // The component that names mean which do not say it.
  const std::string& default_component() const { return default_component_; }
  // The targets of every component that find() gives.
  const std::map<std::string, LoraTargets>& targets() const { return targets_; }
  // Empty without a model.
  std::string family() const;
  model::LoadedModel* model() const { return model_; }

 private:
  Layer from_flat(const std::string& component, std::string_view flat) const;
  std::string text_encoder(size_t number) const;

  model::LoadedModel* model_;
  std::string default_component_ = "dit";
  std::vector<std::string> text_encoders_;  // in their order
  std::optional<Targets> layers_;           // of the model
  std::map<std::string, LoraTargets> targets_;
  // By component, the paths that were learnt by themselves with underscores for dots.
  std::map<std::string, std::map<std::string, std::string, std::less<>>> dotted_;
};

// What a component's layers are named in files: what its family says of a denoiser, and for others
// "NAME.", which files of one control have in common.
LoraTargets file_targets(model::LoadedModel& model, const model::LoadedPart& part);

}  // namespace atelier::lora
