// Who does what in a model: the stages that encode and the denoisers that sample, and how a family
// is asked to encode and to decode.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/model_family.h"

#include "host/model/recognition.h"

namespace atelier::model {

// A denoiser of a model, and the noise levels that it covers.
struct RangedDenoiser {
  Detection part;
  SigmaRange range = {};
  at::ScalarType dtype = at::kFloat;  // in which it is given latents
  const std::string& name() const { return part.component; }
};

// A component of a model.
struct PresentComponent {
  std::string name;  // "dit"; of several files of a control "controlnet.1", too
  ComponentSpec spec;
};

// Worked out once for a model, from the tables of its family and the parts that there are.
struct Stages {
  std::string variant;  // of the denoisers; without any what a hint says; empty: unknown
  // Components that the model was made with, tokenizers included, in the order of the table.
  std::vector<PresentComponent> components;
  std::vector<EncodeStage> encoding;       // of the variant, in the order of the table
  std::span<const InputSpec> inputs = {};  // of the family
  double fps = 0.0;  // frames per second that the variant is made for; 0: it has no rate
  const InputSpec* target_input = nullptr;     // that training makes; null: there is none
  std::vector<RangedDenoiser> denoisers = {};  // that of the noisiest levels first

  // The stage that makes the latents of target_input; null: there is none.
  const EncodeStage* target_stage() const;
  bool is_target(const EncodeStage& stage) const;
  // What that stage is given for the frames of one sample, [channels, T, H, W]; there is one. An
  // image has no axis of frames, and of a list of images each frame is one.
  EncodeInputs target_inputs(const at::Tensor& pixels_CTHW) const;
  // The controls that run beside a denoiser when `is_given` says of inputs' names which are given:
  // those that one of them belongs to, and those that no input belongs to.
  std::vector<std::string> controls_beside(
      std::string_view denoiser, const std::function<bool(std::string_view input)>& is_given) const;
  std::vector<std::string> controls_beside(std::string_view denoiser, const Inputs& given) const;
  // The first denoiser, for what all have in common; null: there is none.
  const RangedDenoiser* first() const { return denoisers.empty() ? nullptr : &denoisers.front(); }
};

// Two denoisers change at boundary_ratio of their folder's model_index.json where it has one.
// Throws what ModelFamily::sigma_range() throws, and Error{kInvalidArgument} for a boundary_ratio
// outside of the two ranges.
Stages stages_of(const ModelFamily& family, std::span<const LoadedPart> parts);

// The component that a saved file says it holds, by which it is found in a model that has all of
// them: `component` itself, or what LoraTargets::component says of a denoiser that is alone; of a
// control beside such a one the control beside that. Empty: nobody knows which one it is.
std::string saved_name(const ModelFamily& family, const Stages& stages, std::string_view component);

// The one for a noise level, which is a float32 as the ends of ranges are taken to be; of two that
// share it, the first. Throws Error{kNotFound} when there is none.
const RangedDenoiser& denoiser_at(std::span<const RangedDenoiser> denoisers, float sigma);

// Lists a variant's stages in the order of the family's table; "": the denoiser is not known.
std::vector<EncodeStage> encode_stages(const ModelFamily& family, std::string_view variant = {});

bool reads(const EncodeStage& stage, std::string_view input);
// Whether the stage needs the component to encode. A control that it names needs what it gives.
bool uses(const EncodeStage& stage, const ComponentSpec& component);
// Whether any stage of a family uses it.
bool encodes(const ModelFamily& family, const ComponentSpec& component);
// Whether an input belongs to a control: each of its values to a file of it, or it is read by a
// stage that names the control.
bool is_for(const InputSpec& input, const ComponentSpec& control,
            std::span<const EncodeStage> stages);
// Whether it runs a text encoder or a tokenizer.
bool reads_texts(const EncodeStage& stage, const ModelFamily& family);
bool is_prompted(const EncodeStage& stage);  // whether it reads the prompt
// Whether it runs for the negative branch of guidance, too.
bool runs_per_branch(const EncodeStage& stage);

// The input that training makes; null when the family has none.
const InputSpec* target_input(std::span<const InputSpec> inputs);
// The input that sampling may begin from; null when the family has none.
const InputSpec* start_input(std::span<const InputSpec> inputs);

// Whether a component is needed for nothing but to encode, so that it may leave afterwards.
bool only_encodes(const ComponentSpec& component);

// What a stage encodes, for messages: "texts", "images", or the stage's name.
std::string encoded_by(const EncodeStage& stage, std::span<const InputSpec> inputs);

// What of `inputs` a stage reads.
Inputs inputs_of(const EncodeStage& stage, const Inputs& inputs);

// Returns `in` as the negative branch of guidance has it: with `prompt` as its prompt, and with
// those of `given` that stand for others there, see InputSpec::negative_of.
EncodeInputs negative_of(EncodeInputs in, const std::string& prompt, const Inputs& given,
                         std::span<const InputSpec> inputs);

// Runs a stage on `device`, with the caller's grad mode.
Conditioning encode(Model& model, EncodeInputs in, BlockRunner& runner, at::Device device);

// What the frames of one sample are given to as they are decoded: float32 [3, frames, H, W] in
// [-1, 1].
using SampleSink = std::function<void(const at::Tensor& pixels_CTHW)>;
// Decodes one sample, [1, C, T, H, W]; the frames are on `device`.
void decode(Model& model, const at::Tensor& latents_1CTHW, BlockRunner& runner, at::Device device,
            const SampleSink& sink);
// Decodes samples to one tensor, [B, 3, T, H, W] on `device`.
at::Tensor decode_whole(Model& model, const at::Tensor& latents_BCTHW, BlockRunner& runner,
                        at::Device device);

}  // namespace atelier::model
