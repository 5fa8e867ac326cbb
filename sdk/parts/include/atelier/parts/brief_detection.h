// Detections of architectures that got numbers after they were published: checkpoints of training
// and caches know a model by its detection, so a later number is in it only where it is not the
// usual one.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "atelier/component_family.h"

namespace atelier::parts {

// `Config` is a struct of architecture.h. Its `kLater` names the fields that are left out where
// they are those of Config{}.
template <class Config>
Detection brief_detection_of(std::string component, std::string spelling, Config config,
                             std::string prefix = {}) {
  Detection part =
      detection_of(std::move(component), std::move(spelling), std::move(config), std::move(prefix));
  const TensorIndex::Config usual = detection_of("", "", Config{}).config;
  for (const char* name : Config::kLater) {
    if (is_same(part.config.at(name), usual.at(name))) part.config.erase(name);
  }
  return part;
}

// The struct that such a detection holds. Throws when it lacks a field that is not in `kLater`.
template <class Config>
Config whole_config_of(const Detection& part) {
  Detection whole = part;
  const TensorIndex::Config usual = detection_of("", "", Config{}).config;
  for (const char* name : Config::kLater) whole.config.try_emplace(name, usual.at(name));
  return config_of<Config>(whole);
}

// ComponentRow::make of a module that is made of such a struct.
template <class Part, class Config>
std::unique_ptr<nn::Module> make_brief_part(const Detection& part) {
  return std::make_unique<Part>(whole_config_of<Config>(part));
}

}  // namespace atelier::parts
