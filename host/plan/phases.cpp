#include "host/plan/phases.h"

#include <algorithm>

namespace atelier::plan {

using model::LoadedModel;

namespace {

// How long the launches of a block's kernels take, when each begins a little after it could.
constexpr double kLaunchSeconds = 100e-6;

}  // namespace

std::vector<std::string> components_where(const LoadedModel& model,
                                          const std::function<bool(const ComponentSpec&)>& is_one) {
  std::vector<std::string> names;
  for (const ComponentSpec& spec : model.family().components()) {
    if (spec.role != Role::kTokenizer && is_one(spec) && model.find_part(spec.name) != nullptr)
      names.emplace_back(spec.name);
  }
  return names;
}

Conditioning example_text(const DryModel& dry, const LoadedModel& model, const Detection& denoiser,
                          int64_t tokens) {
  Conditioning text =
      model.family().example_conditioning(denoiser, tokens, model.dtype(denoiser.component));
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

memory::Strategy strategy_of(DryModel& dry, const LoadedModel& model, const DryPass& pass,
                             at::ScalarType dtype, const memory::DeviceProfile& profile) {
  memory::Strategy strategy;
  strategy.device_bytes = pass.peak_bytes;
  strategy.seconds = pass.work.seconds(profile, dtype);
  strategy.repeats = pass.blocks.empty() ? 1.0 : 0.0;
  for (const auto& [block, of_block] : pass.blocks)
    strategy.repeats = std::max(strategy.repeats, of_block.runs);
  for (const model::LoadedPart& part : model.parts()) {
    const std::string& name = part.detection.component;
    std::vector<double> seconds;
    bool runs = false;
    for (Block* block : dry.model().blocks(name)) {
      double& of_one = seconds.emplace_back(0.0);  // of a run
      const auto found = pass.blocks.find(block);
      if (found == pass.blocks.end()) continue;
      runs = true;
      const auto& [work, times] = found->second;
      const double computing = work.seconds(profile, dry.dtype(name));
      const double beside = seconds_beside_work(*block, dry.dtype(name), dry.like(), profile);
      strategy.seconds -= computing;
      of_one = (computing + times * beside) / strategy.repeats;
    }
    if (runs) strategy.forward.emplace(name, std::move(seconds));
  }
  strategy.seconds = std::max(0.0, strategy.seconds);
  return strategy;
}

}  // namespace atelier::plan
