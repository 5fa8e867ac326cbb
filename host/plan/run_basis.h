// What a run is sized by: the largest of what it makes or learns from, found without values.
#pragma once

#include <span>

#include "host/model/model_loader.h"
#include "host/order/generation.h"
#include "host/plan/run_sizes.h"
#include "host/train/training_run.h"

namespace atelier::plan {

// The one of `jobs`, at least one, that denoises most at once.
const order::Job& largest_job(const model::LoadedModel& model, std::span<const order::Job> jobs);
// Stands for all of `jobs`. `order` outlives what is returned.
GenerationBasis generation_basis(model::LoadedModel& model, const order::Generation& order,
                                 std::span<const order::Job> jobs);

// The one of `prompts`, at least one, of most pixels.
const order::Settings& largest_prompt(const model::LoadedModel& model,
                                      std::span<const order::Settings> prompts);
// By the dataset or the cache of `run`, which outlives what is returned.
TrainingBasis training_basis(const train::PreparedRun& run);

}  // namespace atelier::plan
