// Lumina-Image 2.0: what it is made of, what it takes, and how it is sampled by default.
#include "atelier/parts/autoencoder_kl.h"
#include "atelier/plugin.h"

#include "config.h"
#include "dit.h"
#include "gemma2.h"
#include "model.h"
#include "weights.h"

namespace lumina2 {
namespace {

using atelier::ComponentRow;
using atelier::Detection;
using atelier::detection_of;
using atelier::InputKind;
using atelier::InputSpec;
using atelier::InputUse;
using atelier::make_part;
using atelier::Role;
using atelier::ScheduleDefaults;
using atelier::SigmaShift;

// Has numbers that shapes alone tell, so that no config.json is needed.
Detection tiny_text_encoder() {
  return detection_of("text_encoder", "transformers",
                      Gemma2Config{.layers = 3,
                                   .width = 48,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .head_dim = 256,
                                   .mlp_width = 80,
                                   .vocabulary = 512,
                                   .windowed = every_second(3)});
}

Detection tiny_dit() {
  return detection_of("dit", "original",
                      DitConfig{.layers = 2,
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
                                .norm_eps = 1e-5});
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "tokenizer",
              .role = Role::kTokenizer,
              .help = "folder tokenizer/: tokenizer.json or tokenizer.model, of Gemma 2"}},
    {.spec = {.name = "text_encoder",
              .role = Role::kTextEncoder,
              .help =
                  "Gemma 2 2B: text_encoder/*.safetensors, gemma_2_2b_fp16.safetensors or GGUF"},
     .detect = detect_gemma2,
     .config_fields = gemma2_fields,
     .weight_map = gemma2_map,
     .make = make_gemma2,
     .tiny = tiny_text_encoder,
     .spellings = {"transformers", "causal_lm", "bundle"},
     .tokenizer = "tokenizer"},
    atelier::parts::autoencoder_kl_row("vae/*.safetensors or ae.safetensors"),
    {.spec = {.name = "dit",
              .role = Role::kDenoiser,
              .help = "transformer/*.safetensors or lumina_2_model_bf16.safetensors"},
     .detect = detect_dit,
     .config_fields = dit_fields,
     .weight_map = dit_map,
     .make = make_part<Dit, DitConfig>,
     .tiny = tiny_dit,
     .spellings = {"original", "diffusers"}},
};

constexpr InputSpec kInputs[] = {
    {.name = "prompt",
     .kind = InputKind::kText,
     .required = true,
     .help = "what the image shows; at most 256 tokens with the system prompt"},
    {.name = "negative_prompt",
     .kind = InputKind::kText,
     .use = InputUse::kGenerate,
     .help = "what the image does not show; it has no system prompt"},
    {.name = "system_prompt",
     .kind = InputKind::kText,
     .help = "in front of the prompt instead of the published one; empty: none"},
    atelier::kTargetImage,
    atelier::kStartImage,
};

constexpr std::string_view kTextInputs[] = {"prompt", "system_prompt"};
constexpr atelier::EncodeStage kStages[] = {
    {.name = "text", .components = atelier::kTextComponents, .inputs = kTextInputs},
    atelier::kImageStage,
};

constexpr SigmaShift kShift = {.kind = SigmaShift::Kind::kConstant, .value = 6.0};

constexpr ScheduleDefaults kSchedules[] = {
    {.name = "default",
     .num_inference_steps = 30,
     .cfg_scale = 4.0,
     .shift = kShift,
     .cfg_renorm = atelier::CfgRenorm::kClamp,
     .help = "as published: guided lengths are clamped, over the whole image"},
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

class Family final : public atelier::ComponentFamily {
 public:
  Family() : ComponentFamily(kRows, kVariants) {}

  std::string_view name() const override { return "lumina2"; }
  std::string_view help() const override { return "Lumina-Image-2.0: text to image"; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const atelier::EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
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
    return std::make_unique<Lumina2>(rows(), parts, options);
  }
};

}  // namespace
}  // namespace lumina2

ATELIER_PLUGIN(lumina2::Family, "lumina2", "0.1.0")
