// The LoRAs that requests name, put into a model and taken out of it again.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "host/generate/request_loras.h"
#include "host/lora/registry.h"
#include "host/model/model_loader.h"
#include "host/order/settings.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"

namespace atelier::generate {

// The model's layers are looked through when the first LoRA is named. Not thread-safe, but for
// what prepare() says.
class LoraSet final : public RequestLoras {
 public:
  // `model` and `progress` outlive it.
  LoraSet(model::LoadedModel& model, lora::Mode mode, progress::Progress& progress)
      : model_(model), mode_(mode), progress_(progress) {}

  // Looks through the model's layers now. From then on check() may be called from several threads,
  // also while another call runs.
  void prepare() { registry(); }

  // Adds a problem for each LoRA of `settings` that does not fit the model. Reads no values.
  void check(const order::Settings& settings, const order::Origin& place,
             report::Problems& problems);

  // Names in a file that are nothing in the model are told once.
  void use(const Loras& set) override;
  void read(const Loras& set) override;
  bool changes_others(const Loras& set) override;
  bool can_share(std::span<const Loras> sets) override { return registry().can_share(sets); }
  std::optional<ops::SampleStrengths> use_each(std::span<const Loras> sets) override;
  uint64_t version() const override { return registry_ ? registry_->version() : 0; }

  // What Request::encoder_state is with these LoRAs.
  std::string encoder_state(const order::Settings& settings);

 private:
  lora::Registry& registry();
  void tell_unmatched(const Loras& set);

  model::LoadedModel& model_;
  lora::Mode mode_;
  progress::Progress& progress_;
  std::optional<lora::Registry> registry_;
  std::set<std::string> warned_;  // files
};

}  // namespace atelier::generate
