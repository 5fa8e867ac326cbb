// LoRAs of one model, loaded and taken away while it stays.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/checkpoint/model_loader.h"
#include "host/lora/lora_file.h"
#include "host/lora/selection.h"
#include "host/lora/targets.h"

namespace atelier::lora {

// Puts adapters into the linear layers, and takes out only its own. The base weights are never
// written: without LoRAs a model gives its own bits. Adapters are independent of whether a
// component's weights are loaded. Order decides the last bits: that of load(), or of use().
// Not thread-safe.
class Registry {
 public:
  struct Options {
    // Of files that are not in use and stay in memory for the next call, on the compute device; the
    // one that was used longest ago goes first.
    int64_t idle_bytes = int64_t{4} << 30;
  };

  // `model` outlives the registry.
  explicit Registry(checkpoint::LoadedModel& model) : Registry(model, Options()) {}
  Registry(checkpoint::LoadedModel& model, Options options);
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Reads headers and matches names and shapes; no values. Returns the layers and tensors of the
  // file that are nothing in this model. Throws what LoraFile::open and Targets::match throw.
  const std::vector<std::string>& check(const std::string& path);

  // What `set` does to one component, as a text: equal for sets that do the same, and empty for
  // those that leave it as it is. Results that the component gave are stale when it changed.
  std::string fingerprint(std::span<const Use> set, std::string_view component);

  // Adds a LoRA behind those that are there. Throws what check() throws, and
  // Error{kInvalidArgument} when the name is taken or the strength is not finite; the set is then
  // as before.
  void load(const Use& use);
  // Throw Error{kNotFound} naming those that there are.
  void unload(std::string_view name);
  void set_strength(std::string_view name, double strength);

  // Makes `set` the LoRAs in use, in this order. Throws as load().
  void use(std::span<const Use> set);

  const std::vector<Use>& in_use() const { return in_use_; }
  // Of all adapters in memory, in use and idle.
  int64_t bytes() const;

 private:
  struct Adapter {
    nn::Linear* linear;
    at::Tensor a, b;
    double scale;  // at strength 1
  };
  struct Loaded {
    LoraFile file;
    Match match;
    std::vector<Adapter> adapters;  // empty until it is used
    int64_t bytes = 0;
    uint64_t id = 0;  // of this reading of the file
    uint64_t last_use = 0;
    std::pair<int64_t, int64_t> stamp;  // of the file: changes when it is written again
  };
  using LoadedPtr = std::shared_ptr<Loaded>;

  LoadedPtr open(const std::string& path);
  void read(Loaded& loaded) const;
  void place();
  void drop_idle();
  std::vector<Use>::iterator find(std::string_view name);

  checkpoint::LoadedModel& model_;
  Options options_;
  Targets targets_;
  std::map<std::string, LoadedPtr> files_;  // by path
  std::vector<Use> in_use_;
  std::vector<LoadedPtr> used_;                             // of in_use_
  std::vector<std::pair<nn::Linear*, at::Tensor>> placed_;  // layer and the adapter's `a`
  uint64_t clock_ = 0;
};

}  // namespace atelier::lora
