// Rank and alpha as peft writes them: for all layers, and for some by their names.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "host/files/checkpoint.h"

namespace atelier::lora {

// Immutable.
class AdapterConfig {
 public:
  // What the file's metadata `lora_adapter_metadata` says, else the adapter_config.json beside an
  // adapter_model.safetensors; otherwise it says nothing. Throws Error{kDataLoss} for what is no
  // JSON object.
  static AdapterConfig of(const files::Checkpoint& file);

  // What the factor before an addition is made of.
  struct Alpha {
    double alpha;
    std::optional<double> rank;
    bool divides_by_root;
  };
  // nullopt where it gives the layer none. `alpha_key`: "lora_alpha", "alpha".
  std::optional<Alpha> find(const std::string& layer, const std::string& alpha_key) const;

 private:
  explicit AdapterConfig(nlohmann::json values) : values_(std::move(values)) {}
  std::optional<double> number_for(const std::string& component, const std::string& key,
                                   const char* patterns_key, const std::string& name) const;

  // The values of one adapter_config.json, or of several components, each with its name before the
  // keys,
  // "transformer.lora_alpha".
  nlohmann::json values_;
};

}  // namespace atelier::lora
