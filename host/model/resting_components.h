// Weights that wait on the host while a model has nothing to do.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "host/model/model_loader.h"

namespace atelier::model {

// Not thread-safe.
class RestingComponents {
 public:
  // `model` outlives it.
  explicit RestingComponents(LoadedModel& model);
  RestingComponents(const RestingComponents&) = delete;  // the model calls it
  RestingComponents& operator=(const RestingComponents&) = delete;

  // The weights of all components that are loaded leave the device, in the order of the table and
  // as far as the host has room, but for those of components that come block by block. Nothing runs
  // them until they are woken. Does nothing where the device is the host, and for weights that
  // LoRAs add to.
  void rest();
  // Brings a component's weights back, without reading a file. Does nothing for one that does not
  // rest.
  void wake(std::string_view component);
  // Not one that was unloaded since, or loaded anew.
  bool is_resting(std::string_view component) const;

 private:
  bool may_rest(const std::string& component) const;
  void move(std::string_view component, bool to_device);

  LoadedModel& model_;
  std::set<std::string, std::less<>> resting_;
  std::shared_ptr<const LoadedModel::Listener> listener_;
};

}  // namespace atelier::model
