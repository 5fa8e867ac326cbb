#include "host/generate/engine.h"

#include "host/model/stages.h"

namespace atelier::generate {

Engine make_engine(model::LoadedModel& model) {
  Engine engine = {.model = model.model(), .family = std::string(model.family().name())};
  for (const ComponentSpec& component : model.family().components()) {
    if (component.role == Role::kTokenizer || model.find_part(component.name))
      engine.components.push_back(component);
  }
  engine.stages = model::encode_stages(model);
  if (const InputSpec* target = model::target_input(model.family().inputs()))
    engine.target_input = target->name;
  for (const model::LoadedPart* part : model.denoisers())
    engine.denoisers.push_back(
        {part->detection.component, model.family().sigma_range(part->detection)});
  engine.device = model.device();
  engine.dtype = model.dtype();
  engine.decoder_dtype = model.decoder_dtype();
  engine.runner = &model.runner();
  engine.load = [&model](std::string_view component) { model.load_component(component); };
  engine.unload = [&model](std::string_view component) { model.unload_component(component); };
  return engine;
}

}  // namespace atelier::generate
