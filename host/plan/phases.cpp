#include "host/plan/phases.h"

#include <algorithm>

namespace atelier::plan {

using checkpoint::LoadedModel;

std::vector<std::string> components_where(const LoadedModel& model,
                                          const std::function<bool(const ComponentSpec&)>& is_one) {
  std::vector<std::string> names;
  for (const ComponentSpec& spec : model.family().components()) {
    if (spec.role != "tokenizer" && is_one(spec) && model.find_part(spec.name) != nullptr)
      names.emplace_back(spec.name);
  }
  return names;
}

std::vector<std::string> text_encoders(const LoadedModel& model) {
  return components_where(
      model, [](const ComponentSpec& spec) { return spec.phases.encode && spec.role != "vae"; });
}

std::vector<std::string> picture_encoders(const LoadedModel& model) {
  return components_where(
      model, [](const ComponentSpec& spec) { return spec.phases.encode && spec.role == "vae"; });
}

std::vector<std::string> denoisers(const LoadedModel& model) {
  return components_where(model, [](const ComponentSpec& spec) { return spec.phases.denoise; });
}

std::vector<std::string> decoders(const LoadedModel& model) {
  return components_where(model, [](const ComponentSpec& spec) { return spec.phases.decode; });
}

memory::Manner manner_of(DryModel& dry, const DryPass& pass,
                         const std::vector<std::string>& components,
                         const memory::DeviceProfile& profile) {
  memory::Manner manner;
  manner.device_bytes = pass.peak_bytes;
  manner.seconds = pass.work.seconds(profile, dry.dtype());
  for (const std::string& name : components) {
    std::vector<double> seconds;
    for (Block* block : dry.model().blocks(name)) {
      const auto found = pass.blocks.find(block);
      const bool runs = found != pass.blocks.end();
      seconds.push_back(runs ? found->second.seconds(profile, dry.dtype()) : 0.0);
      manner.seconds -= seconds.back();
    }
    if (!seconds.empty()) manner.forward.emplace(name, std::move(seconds));
  }
  manner.seconds = std::max(0.0, manner.seconds);
  return manner;
}

}  // namespace atelier::plan
