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
// Of the stages that make conditionings, and of the one that makes the latents to learn or to begin
// from.
std::vector<std::string> condition_encoders(const model::LoadedModel& model);
std::vector<std::string> target_encoders(const model::LoadedModel& model);
std::vector<std::string> denoisers(const model::LoadedModel& model);
std::vector<std::string> decoders(const model::LoadedModel& model);

// What the stages make of a sample's inputs, without values. `negative`: in place of the prompt.
Conditioning encode_conditions(DryModel& dry, const model::LoadedModel& model, const Inputs& inputs,
                               const MediaTarget& target, const std::string* negative,
                               BlockRunner& runner);
// Latents of pixels [3, T, H, W].
at::Tensor encode_target(DryModel& dry, const model::LoadedModel& model, const at::Tensor& pixels,
                         BlockRunner& runner);
// Pixels of latents [B, C, T, H, W].
at::Tensor decode(DryModel& dry, const at::Tensor& latents, BlockRunner& runner);

// What the denoiser is given for a text of that many tokens, without values.
Conditioning example_text(const DryModel& dry, const model::LoadedModel& model, int64_t tokens);

// Of one run of a block: reading its weights, and on a GPU launching its kernels.
double seconds_beside_work(Block& block, at::ScalarType dtype, at::DeviceType like,
                           const memory::DeviceProfile& profile);

// `pass` as a manner of a phase in which `components` run.
memory::Manner manner_of(DryModel& dry, const DryPass& pass,
                         const std::vector<std::string>& components,
                         const memory::DeviceProfile& profile);

}  // namespace atelier::plan
