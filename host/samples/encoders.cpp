#include "host/samples/encoders.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "host/model/components.h"
#include "host/model/fingerprint.h"

namespace atelier::samples {
namespace {

using model::LoadedModel;

at::Tensor checked(const at::Tensor& value, const std::string& what) {
  const at::Tensor on_cpu = value.detach().to(at::kCPU).contiguous();
  if (at::isFloatingType(on_cpu.scalar_type()) && !at::isfinite(on_cpu).all().item<bool>())
    throw Error(ErrorCode::kNumerics, what + " has values that are not finite",
                "compute in another --dtype, and check the model's files");
  return on_cpu;
}

std::set<std::string, std::less<>> loaded_components(const LoadedModel& model) {
  std::set<std::string, std::less<>> names;
  for (const model::LoadedPart& part : model.parts()) {
    if (model.is_loaded(part.detection.component)) names.insert(part.detection.component);
  }
  return names;
}

}  // namespace

EncoderRecords encoder_records(const LoadedModel& model, const EncodeStage& stage) {
  EncoderRecords records;
  for (const ComponentSpec& component : model.family().components()) {
    if (!model::uses(stage, component)) continue;
    if (!model::holds_for(component, model.stages().variant)) continue;
    const std::string name(component.name);
    if (const auto file = model.files().find(name); file != model.files().end()) {
      records[name] = {model::tokenizer_fingerprint(file->second), ""};
    } else if (const model::LoadedPart* part = model.find_part(name)) {
      std::string dtype = weights::dtype_name(model.dtype(name));
      const weights::Storage storage = model.storage(name);
      // What is published as codes has these in its fingerprint.
      if (storage != weights::Storage::kPlain && storage != weights::Storage::kPublished)
        dtype += " of " + std::string(weights::storage_name(storage));
      if (model.compute(name) == weights::Compute::kW8A8) dtype += " as w8a8";
      records[name] = {model::fingerprint(*part), dtype};
    }
  }
  return records;
}

EncoderRecords encoder_records(const LoadedModel& model, const EncodeStage& stage,
                               const EncoderRecords& recorded) {
  EncoderRecords records = encoder_records(model, stage);
  for (const ComponentSpec& component : model.family().components()) {
    if (!model::uses(stage, component) || records.contains(component.name)) continue;
    if (!model::holds_for(component, model.stages().variant)) continue;
    const auto found = recorded.find(component.name);
    if (found == recorded.end())
      throw Error(ErrorCode::kNotFound,
                  "component " + std::string(component.name) + " is missing, which encodes " +
                      model::encoded_by(stage, model.family().inputs()),
                  "pass its files with --model_paths or --model_id_with_origin_paths");
    records.insert(*found);
  }
  return records;
}

Encoders::Encoders(LoadedModel& model, const EncodeStage& stage, progress::Progress& progress)
    : model_(model),
      stage_(stage),
      residents_(
          model.stages().components,
          [&model, &progress](std::string_view component) {
            if (!model.is_loaded(component)) model::load_shown(model, component, progress);
          },
          [&model](std::string_view component) { model.unload_component(component); },
          loaded_components(model)) {
  try {
    residents_.encode(stage_);
  } catch (...) {
    residents_.end();
    throw;
  }
}

Encoders::~Encoders() {
  residents_.end();
}

Conditioning Encoders::encode(const Inputs& values, const MediaTarget& target) {
  const at::NoGradGuard no_grad;
  Conditioning cond = model::encode(
      model_.model(),
      {.stage = stage_.name, .values = values, .target = target, .fps = model_.stages().fps},
      model_.runner(), model_.device());
  for (auto& [name, tensor] : cond) tensor = checked(tensor, "the encoding '" + name + "'");
  return cond;
}

}  // namespace atelier::samples
