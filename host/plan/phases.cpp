#include "host/plan/phases.h"

#include <algorithm>

#include "host/model/stages.h"
#include "host/plugins/guard.h"

namespace atelier::plan {

using model::LoadedModel;

namespace {

// Of the kernels of a block, when each begins a little after it could.
constexpr double kLaunchSeconds = 100e-6;

std::vector<std::string> encoders_where(const LoadedModel& model,
                                        const std::function<bool(bool is_target)>& is_one) {
  const std::vector<EncodeStage> stages = model::encode_stages(model);
  const EncodeStage* target = model::target_stage(stages, model.family().inputs());
  return components_where(model, [&](const ComponentSpec& spec) {
    return std::any_of(stages.begin(), stages.end(), [&](const EncodeStage& stage) {
      return is_one(&stage == target) && model::uses(stage, spec.name);
    });
  });
}

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

std::vector<std::string> condition_encoders(const LoadedModel& model) {
  return encoders_where(model, [](bool is_target) { return !is_target; });
}

std::vector<std::string> target_encoders(const LoadedModel& model) {
  return encoders_where(model, [](bool is_target) { return is_target; });
}

std::vector<std::string> denoisers(const LoadedModel& model) {
  return components_where(model,
                          [](const ComponentSpec& spec) { return spec.role == Role::kDenoiser; });
}

std::vector<std::string> decoders(const LoadedModel& model) {
  return components_where(model, [](const ComponentSpec& spec) { return spec.role == Role::kVae; });
}

Conditioning encode_conditions(DryModel& dry, const LoadedModel& model, const Inputs& inputs,
                               const MediaTarget& target, const std::string* negative,
                               BlockRunner& runner) {
  const std::vector<EncodeStage> stages = model::encode_stages(model);
  const EncodeStage* of_target = model::target_stage(stages, model.family().inputs());
  Conditioning cond;
  for (const EncodeStage& stage : stages) {
    EncodeInputs in = {.stage = stage.name,
                       .values = model::inputs_of(stage, dry.without_values(inputs)),
                       .target = target};
    if (&stage == of_target || in.values.empty()) continue;
    if (negative != nullptr && model::is_prompted(stage))
      in = model::negative_of(std::move(in), *negative);
    cond.merge(
        plugins::guard("encode of a dry run", [&] { return dry.model().encode(in, runner); }));
  }
  return cond;
}

at::Tensor encode_target(DryModel& dry, const LoadedModel& model, const at::Tensor& pixels,
                         BlockRunner& runner) {
  const std::vector<EncodeStage> stages = model::encode_stages(model);
  const EncodeStage* stage = model::target_stage(stages, model.family().inputs());
  const std::string input(model::target_input(model.family().inputs())->name);
  return plugins::guard("encode of a dry run", [&] {
    return dry.model()
        .encode({.stage = stage->name,
                 .values = {{input, pixels}},
                 .target = {pixels.size(1), pixels.size(2), pixels.size(3)}},
                runner)
        .at("latents");
  });
}

at::Tensor decode(DryModel& dry, const at::Tensor& latents, BlockRunner& runner) {
  return plugins::guard("decode of a dry run", [&] {
    return model::decode_whole(dry.model(), latents, runner, at::kMeta);
  });
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
