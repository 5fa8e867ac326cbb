// A loaded model as the generator takes it.
#pragma once

#include "host/generate/generator.h"
#include "host/model/model_loader.h"

namespace atelier::generate {

// With the components that the model was made with; they come and go by themselves. `model`
// outlives it.
Engine make_engine(model::LoadedModel& model);

}  // namespace atelier::generate
