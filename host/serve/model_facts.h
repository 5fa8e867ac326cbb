// What clients are told of the model that is served.
#pragma once

#include "host/model/model_loader.h"
#include "host/order/serving.h"
#include "host/serve/jobs.h"

namespace atelier::serve {

// `order`: that of the server whose model `model` is. No weights are read.
ModelFacts facts_of(const model::LoadedModel& model, const order::Serving& order);

}  // namespace atelier::serve
