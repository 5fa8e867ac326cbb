// What the phases of generation and of training have in common.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "atelier/component.h"

#include "host/plan/dry_model.h"
#include "memory/planner.h"

namespace atelier::plan {

// The components of a model that are of a kind, without the tokenizer.
std::vector<std::string> components_where(const model::LoadedModel& model,
                                          const std::function<bool(const ComponentSpec&)>& is_one);
// What a denoiser is given for a text of that many tokens, without values.
Conditioning example_text(const DryModel& dry, const model::LoadedModel& model,
                          const Detection& denoiser, int64_t tokens);

// The seconds of one run of a block beside its arithmetic: reading its weights, and on a GPU
// launching its kernels.
double seconds_beside_work(Block& block, at::ScalarType dtype, at::DeviceType like,
                           const memory::DeviceProfile& profile);

// `pass` as a strategy. `dtype`: of the products outside of blocks.
memory::Strategy strategy_of(DryModel& dry, const model::LoadedModel& model, const DryPass& pass,
                             at::ScalarType dtype, const memory::DeviceProfile& profile);

}  // namespace atelier::plan
