#include "host/generate/engine.h"

namespace atelier::generate {

Engine make_engine(model::LoadedModel& model) {
  Engine engine = {.model = model.model(), .family = std::string(model.family().name())};
  for (const ComponentSpec& component : model.family().components()) {
    if (component.role == "tokenizer" || model.find_part(component.name))
      engine.components.push_back(component);
  }
  engine.device = model.device();
  engine.dtype = model.dtype();
  engine.decoder_dtype = model.decoder_dtype();
  engine.runner = &model.runner();
  engine.load = [&model](std::string_view component) { model.load_component(component); };
  engine.unload = [&model](std::string_view component) { model.unload_component(component); };
  return engine;
}

}  // namespace atelier::generate
