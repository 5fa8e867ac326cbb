// Lumina-Image 2.0: what it is made of, what it takes, and how it is sampled by default.
#include "atelier/plugin.h"

#include "config.h"
#include "model.h"
#include "weights.h"

namespace lumina2 {
namespace {

using atelier::ComponentSpec;
using atelier::Detection;
using atelier::InputKind;
using atelier::InputSpec;
using atelier::InputUse;
using atelier::ScheduleDefaults;
using atelier::SigmaShift;

constexpr ComponentSpec kComponents[] = {
    {.name = "tokenizer",
     .role = "tokenizer",
     .phases = {.encode = true},
     .help = "folder tokenizer/: tokenizer.json or tokenizer.model, of Gemma 2"},
    {.name = "text_encoder",
     .role = "text_encoder",
     .phases = {.encode = true},
     .help = "Gemma 2 2B: text_encoder/*.safetensors or gemma_2_2b_fp16.safetensors"},
    {.name = "vae",
     .role = "vae",
     .phases = {.encode = true, .decode = true},
     .help = "vae/*.safetensors or ae.safetensors"},
    {.name = "dit",
     .role = "dit",
     .phases = {.denoise = true},
     .help = "transformer/*.safetensors or lumina_2_model_bf16.safetensors"},
};

constexpr InputSpec kInputs[] = {
    {.name = "prompt",
     .kind = InputKind::kText,
     .required = true,
     .help = "what the picture shows; at most 256 tokens with the system prompt"},
    {.name = "negative_prompt",
     .kind = InputKind::kText,
     .use = InputUse::kGenerate,
     .help = "what the picture does not show; it has no system prompt"},
    {.name = "system_prompt",
     .kind = InputKind::kText,
     .help = "in front of the prompt instead of the published one; empty: none"},
    {.name = "image",
     .kind = InputKind::kImage,
     .required = true,
     .use = InputUse::kTrain,
     .help = "the picture to learn"},
};

constexpr SigmaShift kShift = {.kind = SigmaShift::Kind::kConstant, .value = 6.0};

constexpr ScheduleDefaults kSchedules[] = {
    {.name = "default",
     .num_inference_steps = 30,
     .cfg_scale = 4.0,
     .shift = kShift,
     .cfg_renorm = atelier::CfgRenorm::kClamp,
     .help = "as published: guided lengths are clamped, over the whole picture"},
    {.name = "row",
     .num_inference_steps = 30,
     .cfg_scale = 4.0,
     .shift = kShift,
     .cfg_renorm = atelier::CfgRenorm::kRow,
     .help = "as diffusers: each row of the guided latents gets its length without guidance"},
};

// As the published training at 1024 x 1024 shifts noise levels, whatever the size: log a = 1.15.
constexpr ScheduleDefaults kTrainingSchedule = {
    .name = "training", .shift = {.kind = SigmaShift::Kind::kConstant, .value = 3.158192909689767}};

class Family final : public atelier::ModelFamily {
 public:
  std::string_view name() const override { return "lumina2"; }
  std::string_view help() const override { return "Lumina-Image-2.0: text to image"; }
  std::span<const ComponentSpec> components() const override { return kComponents; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }

  std::optional<Detection> detect(const atelier::TensorIndex& checkpoint,
                                  const atelier::DetectHint& hint) const override {
    return lumina2::detect(checkpoint, hint);
  }
  atelier::ConfigFields config_fields(const Detection& part) const override {
    return lumina2::config_fields(part);
  }
  atelier::WeightMap weight_map(const Detection& part) const override {
    return lumina2::weight_map(part);
  }
  std::vector<std::string> spellings(const Detection& part) const override {
    return lumina2::spellings(part);
  }

  ScheduleDefaults training_schedule(const Detection&) const override { return kTrainingSchedule; }

  // Every product of every block: what published LoRA files of this family hold.
  atelier::LoraTargets lora_targets(const Detection&) const override {
    return {.include = {"*.attention.qkv", "*.attention.out", "*.feed_forward.w1",
                        "*.feed_forward.w2", "*.feed_forward.w3", "*.adaLN_modulation.1"},
            .exclude = {"final_layer.*"},
            .file_prefix = "transformer."};
  }

  std::unique_ptr<atelier::Model> make_model(std::span<const Detection> parts,
                                             const atelier::ModelOptions& options) const override {
    return std::make_unique<Lumina2>(parts, options);
  }

  // Of numbers that shapes alone tell, so that no config.json is needed.
  std::vector<Detection> tiny_parts() const override {
    std::vector<Detection> parts = {
        to_detection(Gemma2Config{.layers = 3,
                                  .width = 48,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .head_dim = 256,
                                  .mlp_width = 80,
                                  .vocabulary = 512,
                                  .windowed = every_second(3)}),
        to_detection(AutoencoderConfig{.widths = {32, 32, 64, 64}, .res_blocks = 1}),
        to_detection(DitConfig{.layers = 2,
                               .refiners = 1,
                               .width = 96,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 24,
                               .mlp_width = 256,
                               .text_width = 48,
                               .time_width = 96,
                               .channels = 16,
                               .patch = kPublishedPatch,
                               .axes = {8, 8, 8},
                               .norm_eps = 1e-5})};
    for (Detection& part : parts) part.variant = kVariant;
    return parts;
  }

  atelier::Conditioning example_conditioning(const Detection& denoiser, int64_t tokens,
                                             at::ScalarType dtype) const override {
    return {{"prompt_embeds",
             at::randn({tokens, dit_config(denoiser).text_width}, at::kFloat).to(dtype)}};
  }
};

}  // namespace
}  // namespace lumina2

ATELIER_PLUGIN(lumina2::Family, "lumina2", "0.1.0")
