#include "host/generate/engine_model.h"

#include <algorithm>

#include "host/model/handover.h"

namespace atelier::generate {

bool EngineModel::keeps_denoisers() const {
  return std::ranges::all_of(stages.denoisers, [this](const model::RangedDenoiser& denoiser) {
    return stays.contains(denoiser.name());
  });
}

bool EngineModel::keeps_all() const {
  return std::ranges::all_of(stages.components, [this](const model::PresentComponent& component) {
    return component.spec.role == Role::kTokenizer || stays.contains(component.name);
  });
}

EngineModel engine_model_of(model::LoadedModel& model) {
  EngineModel engine = {.model = model.model()};
  engine.stages = model.stages();
  engine.device = model.device();
  engine.decoder_dtype = model.decoder_dtype();
  engine.runner = &model.runner();
  engine.load = [&model](std::string_view component) { model.load_component(component); };
  engine.unload = [&model](std::string_view component) { model.unload_component(component); };
  engine.is_resident = [&model](std::string_view component) {
    return model.is_loaded(component) && !model.is_streamed(component);
  };
  engine.hand_over = [&model](std::string_view from, std::string_view to) {
    model::hand_over(model, from, to);
  };
  return engine;
}

}  // namespace atelier::generate
