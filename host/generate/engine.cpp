#include "host/generate/engine.h"

#include "host/model/handover.h"

namespace atelier::generate {

Engine make_engine(model::LoadedModel& model) {
  Engine engine = {.model = model.model()};
  engine.stages = model.stages();
  engine.device = model.device();
  engine.decoder_dtype = model.decoder_dtype();
  engine.runner = &model.runner();
  engine.load = [&model](std::string_view component) { model.load_component(component); };
  engine.unload = [&model](std::string_view component) { model.unload_component(component); };
  engine.hand_over = [&model](std::string_view from, std::string_view to) {
    model::hand_over(model, from, to);
  };
  return engine;
}

}  // namespace atelier::generate
