#include "host/plan/phases.h"

#include <algorithm>

#include "host/plugins/guard.h"

namespace atelier::plan {

using model::LoadedModel;

namespace {

// Of the kernels of a block, when each begins a little after it could.
constexpr double kLaunchSeconds = 100e-6;

}  // namespace

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

Conditioning example_text(const DryModel& dry, const LoadedModel& model, int64_t tokens) {
  Conditioning text = plugins::guard(model.family().name(), [&] {
    return model.family().example_conditioning(model.denoiser()->detection, tokens, model.dtype());
  });
  for (auto& [name, t] : text) {
    if (at::isFloatingType(t.scalar_type())) t = dry.tensor(t.sizes(), t.scalar_type());
  }
  return text;
}

double seconds_beside_work(Block& block, at::ScalarType dtype, at::DeviceType like,
                           const memory::DeviceProfile& profile) {
  int64_t numbers = 0;
  block.visit_weights([&](const std::string&, const Weight& weight) { numbers += weight.numel(); });
  const auto bytes = static_cast<double>(numbers) * static_cast<double>(c10::elementSize(dtype));
  return bytes / profile.memory_bytes_per_second + (like == at::kCPU ? 0.0 : kLaunchSeconds);
}

memory::Manner manner_of(DryModel& dry, const DryPass& pass,
                         const std::vector<std::string>& components,
                         const memory::DeviceProfile& profile) {
  memory::Manner manner;
  manner.device_bytes = pass.peak_bytes;
  manner.seconds =
      pass.work.seconds(profile, components.empty() ? dry.dtype() : dry.dtype(components.front()));
  for (const std::string& name : components) {
    const at::ScalarType dtype = dry.dtype(name);
    std::vector<double> seconds;
    for (Block* block : dry.model().blocks(name)) {
      const auto found = pass.blocks.find(block);
      if (found == pass.blocks.end()) {
        seconds.push_back(0.0);
        continue;
      }
      const double computing = found->second.seconds(profile, dtype);
      manner.seconds -= computing;
      seconds.push_back(computing + seconds_beside_work(*block, dtype, dry.like(), profile));
    }
    if (!seconds.empty()) manner.forward.emplace(name, std::move(seconds));
  }
  manner.seconds = std::max(0.0, manner.seconds);
  return manner;
}

}  // namespace atelier::plan
