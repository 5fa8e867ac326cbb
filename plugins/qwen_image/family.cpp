// Qwen-Image: what it is made of, what it takes, and how it is sampled by default.
#include "atelier/plugin.h"

#include "config.h"
#include "dit.h"
#include "model.h"
#include "shared/causal_vae.h"
#include "weights.h"

namespace qwen_image {
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
using atelier::shared::CausalVae;
using atelier::shared::CausalVaeConfig;

// Has numbers that shapes alone tell, so that no config.json is needed.
Detection tiny_text_encoder() {
  return detection_of("text_encoder", "disk",
                      TextEncoderConfig{.layers = 2,
                                        .width = 48,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_dim = 128,
                                        .mlp_width = 80,
                                        .vocabulary = 512,
                                        .window = 0,
                                        .windowed = {false, false},
                                        .rope_theta = 1e6,
                                        .eps = 1e-6});
}

Detection tiny_vae() {
  return detection_of("vae", "diffusers",
                      CausalVaeConfig{.channels = 16,
                                      .widths = {8, 16, 32, 32},
                                      .base_width = 8,
                                      .res_blocks = 2,
                                      .temporal = {false, true, true},
                                      .mean = atelier::shared::kCausalVaeMean,
                                      .std = atelier::shared::kCausalVaeStd});
}

Detection tiny_dit() {
  return detection_of("dit", "diffusers",
                      DitConfig{.layers = 2,
                                .width = 64,
                                .heads = 2,
                                .head_dim = 32,
                                .mlp_width = 256,
                                .text_width = 48,
                                .channels = 16,
                                .axes = {4, 14, 14}});
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "tokenizer",
              .role = Role::kTokenizer,
              .help = "folder tokenizer/: tokenizer.json, or vocab.json and merges.txt"}},
    {.spec = {.name = "text_encoder",
              .role = Role::kTextEncoder,
              .help = "Qwen2.5-VL 7B: text_encoder/*.safetensors or qwen_2.5_vl_7b.safetensors"},
     .detect = detect_text_encoder,
     .config_fields = text_encoder_fields,
     .weight_map = text_encoder_map,
     .make = make_part<TextEncoder, TextEncoderConfig>,
     .tiny = tiny_text_encoder,
     .tokenizer = "tokenizer",
     .tokenizer_rules = atelier::text::ByteLevelRules{.tokenizer_class = "Qwen2Tokenizer",
                                                      .nfc = true,
                                                      .single_digits = true,
                                                      .added_tokens = {"<|endoftext|>"}}},
    {.spec = {.name = "vae",
              .role = Role::kVae,
              .help = "vae/*.safetensors or qwen_image_vae.safetensors"},
     .detect = detect_vae,
     .config_fields = vae_fields,
     .weight_map = atelier::shared::causal_vae_map,
     .make = make_part<CausalVae, CausalVaeConfig>,
     .tiny = tiny_vae},
    {.spec = {.name = "dit",
              .role = Role::kDenoiser,
              .help = "transformer/*.safetensors or qwen_image_bf16.safetensors"},
     .detect = detect_dit,
     .config_fields = dit_fields,
     .weight_map = dit_map,
     .make = make_part<Dit, DitConfig>,
     .tiny = tiny_dit},
};

constexpr InputSpec kInputs[] = {
    {.name = "prompt",
     .kind = InputKind::kText,
     .required = true,
     .help = "what the image shows; at most 1024 tokens with the template's end"},
    {.name = "negative_prompt",
     .kind = InputKind::kText,
     .use = InputUse::kGenerate,
     .help = "what the image does not show; a space when empty"},
    {.name = "image",
     .kind = InputKind::kImage,
     .required = true,
     .use = InputUse::kTrain,
     .help = "the image to learn",
     .role = atelier::InputRole::kTarget},
    {.name = "input_image",
     .kind = InputKind::kImage,
     .use = InputUse::kGenerate,
     .help = "image to start from, scaled and cropped to --height and --width",
     .role = atelier::InputRole::kStart},
};

constexpr std::string_view kTextComponents[] = {"tokenizer", "text_encoder"};
constexpr std::string_view kTextInputs[] = {"prompt"};
constexpr std::string_view kLatentsComponents[] = {"vae"};
constexpr std::string_view kLatentsInputs[] = {"image"};

constexpr atelier::EncodeStage kStages[] = {
    {.name = "text", .components = kTextComponents, .inputs = kTextInputs},
    {.name = "latents", .components = kLatentsComponents, .inputs = kLatentsInputs},
};

constexpr SigmaShift kDynamicShift = {.kind = SigmaShift::Kind::kByTokens,
                                      .base = 0.5,
                                      .max = 0.9,
                                      .base_tokens = 256,
                                      .max_tokens = 8192};

constexpr ScheduleDefaults kSchedules[] = {
    {.name = "default",
     .num_inference_steps = 50,
     .cfg_scale = 4.0,
     .shift = kDynamicShift,
     .terminal_sigma = 0.02,
     .help = "Qwen-Image and Qwen-Image-2512"},
    {.name = "lightning",
     .num_inference_steps = 4,
     .cfg_scale = 1.0,
     .shift = {.kind = SigmaShift::Kind::kConstant, .value = 3.0},
     .help = "Qwen-Image-Lightning LoRAs, 4 or 8 steps without guidance"},
    {.name = "distill",
     .num_inference_steps = 15,
     .cfg_scale = 1.0,
     .shift = kDynamicShift,
     .terminal_sigma = 0.02,
     .help = "Qwen-Image-Distill, 15 steps without guidance"},
};

// The shift of an image of 1.6 megapixels, whatever the size: what published LoRAs and fine-tunes
// were trained with. log a = 0.8.
constexpr ScheduleDefaults kTrainingSchedule = {
    .name = "training",
    .shift = {.kind = SigmaShift::Kind::kConstant, .value = 2.225540928492468},
    .terminal_sigma = 0.02};

class Family final : public atelier::ComponentFamily {
 public:
  Family() : ComponentFamily(kRows, kVariants) {}

  std::string_view name() const override { return "qwen_image"; }
  std::string_view help() const override { return "Qwen-Image and Qwen-Image-2512: text to image"; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const atelier::EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  ScheduleDefaults training_schedule(const Detection&) const override { return kTrainingSchedule; }

  atelier::LoraTargets lora_targets(const Detection&) const override {
    const std::string block = "transformer_blocks.*.";
    return {
        .include = {block + "attn.to_q", block + "attn.to_k", block + "attn.to_v",
                    block + "attn.add_q_proj", block + "attn.add_k_proj", block + "attn.add_v_proj",
                    block + "attn.to_out.0", block + "attn.to_add_out", block + "img_mlp.net.2",
                    block + "img_mod.1", block + "txt_mlp.net.2", block + "txt_mod.1"},
        .exclude = {},
        .file_prefix = "transformer."};
  }

  std::unique_ptr<atelier::Model> make_model(std::span<const Detection> parts,
                                             const atelier::ModelOptions& options) const override {
    return std::make_unique<QwenImage>(rows(), parts, options);
  }
};

}  // namespace
}  // namespace qwen_image

ATELIER_PLUGIN(qwen_image::Family, "qwen_image", "0.1.0")
