// A loaded model as the generator takes it.
#pragma once

#include "host/checkpoint/model_loader.h"
#include "host/generate/generator.h"

namespace atelier::generate {

// With the components that the model was made with; they come and go by themselves. `model`
// outlives it.
Engine make_engine(checkpoint::LoadedModel& model);

}  // namespace atelier::generate
