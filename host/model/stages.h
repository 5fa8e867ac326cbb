// The stages in which a family encodes: who takes part, what they read, and how they are run.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

#include "host/model/model_loader.h"

namespace atelier::model {

// The variant of the model's denoiser; empty where there is none.
std::string_view variant_of(const LoadedModel& model);

// Lists a variant's stages in the order of the family's table; "": the denoiser is not known.
std::vector<EncodeStage> encode_stages(const ModelFamily& family, std::string_view variant = {});
std::vector<EncodeStage> encode_stages(const LoadedModel& model);

bool reads(const EncodeStage& stage, std::string_view input);
bool uses(const EncodeStage& stage, std::string_view component);
// Whether any stage of a family uses it.
bool encodes(const ModelFamily& family, std::string_view component);
// Whether it reads the prompt, and so runs for the negative one, too.
bool is_prompted(const EncodeStage& stage);

// The input that training learns; null when the family has none.
const InputSpec* target_input(std::span<const InputSpec> inputs);
// The input that sampling may begin from; null when the family has none.
const InputSpec* start_input(std::span<const InputSpec> inputs);
// The stage that makes its latents; null when there is none.
const EncodeStage* target_stage(std::span<const EncodeStage> stages,
                                std::span<const InputSpec> inputs);

// Whether a component is needed for nothing but to encode, so that it may leave afterwards.
bool only_encodes(const ComponentSpec& component);

// What a stage encodes, for messages: "texts", "images", or the stage's name.
std::string encoded_by(const EncodeStage& stage, std::span<const InputSpec> inputs);

// What of `inputs` a stage reads.
Inputs inputs_of(const EncodeStage& stage, const Inputs& inputs);

// `values` with their tensors on `device`.
Inputs on_device(Inputs values, at::Device device);

// Returns `in` with `prompt` as its prompt, marked as the negative one of guidance.
EncodeInputs negative_of(EncodeInputs in, const std::string& prompt);

// Decodes to one tensor, [B, 3, T, H, W] on `device`.
at::Tensor decode_whole(Model& model, const at::Tensor& latents_BCTHW, BlockRunner& runner,
                        at::Device device);

}  // namespace atelier::model
