// Wan: what it is made of, what it takes, and how it is sampled by default.
#include "atelier/plugin.h"

#include "clip.h"
#include "config.h"
#include "dit.h"
#include "model.h"
#include "shared/causal_vae.h"
#include "umt5.h"

namespace wan {
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
  return detection_of(
      "text_encoder", "transformers",
      Umt5Config{
          .vocabulary = 512, .width = 48, .heads = 2, .head_dim = 64, .ffn = 80, .layers = 2});
}

Detection tiny_image_encoder() {
  return detection_of(
      "image_encoder", "transformers",
      ClipConfig{.layers = 3, .width = 64, .heads = 16, .mlp_width = 96, .patch = 14, .rows = 17});
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
  return detection_of("dit", "original",
                      DitConfig{.layers = 2,
                                .width = 256,
                                .heads = 2,
                                .mlp_width = 192,
                                .text_width = 48,
                                .image_width = 0,
                                .image_rows = 0,
                                .time_width = 64,
                                .channels = 16,
                                .given_channels = 0,
                                .patch = 2,
                                .norm_eps = 1e-6});
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "tokenizer",
              .role = Role::kTokenizer,
              .help = "folder tokenizer/ or google/umt5-xxl/: tokenizer.json or spiece.model"}},
    {.spec = {.name = "text_encoder",
              .role = Role::kTextEncoder,
              .help = "umT5-XXL: text_encoder/*.safetensors or umt5_xxl_fp16.safetensors"},
     .detect = detect_umt5,
     .config_fields = umt5_fields,
     .weight_map = umt5_map,
     .make = make_part<Umt5, Umt5Config>,
     .tiny = tiny_text_encoder,
     .tokenizer = "tokenizer"},
    {.spec = {.name = "image_encoder",
              .role = Role::kImageEncoder,
              .required = false,
              .help = "CLIP ViT-H/14 of image to video: image_encoder/*.safetensors or "
                      "clip_vision_h.safetensors"},
     .detect = detect_clip,
     .config_fields = clip_fields,
     .weight_map = clip_map,
     .make = make_part<ClipVision, ClipConfig>,
     .tiny = tiny_image_encoder},
    {.spec = {.name = "vae",
              .role = Role::kVae,
              .help = "vae/*.safetensors or wan_2.1_vae.safetensors"},
     .detect = detect_vae,
     .config_fields = vae_fields,
     .weight_map = atelier::shared::causal_vae_map,
     .make = make_part<CausalVae, CausalVaeConfig>,
     .tiny = tiny_vae},
    {.spec = {.name = "dit",
              .role = Role::kDenoiser,
              .help = "transformer/*.safetensors or diffusion_pytorch_model*.safetensors"},
     .detect = detect_dit,
     .config_fields = dit_fields,
     .weight_map = dit_map,
     .make = make_part<Dit, DitConfig>,
     .tiny = tiny_dit,
     .spellings = {"original", "diffusers"}},
    {.spec = {.name = "dit2",
              .role = Role::kDenoiser,
              .required = false,
              .help = "the expert of little noise of Wan 2.2: transformer_2/*.safetensors or "
                      "low_noise_model/*.safetensors"},
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
     .help = "what is to be seen; at most 512 tokens"},
    {.name = "negative_prompt",
     .kind = InputKind::kText,
     .use = InputUse::kGenerate,
     .help = "what is not to be seen; the published one when empty"},
    {.name = "input_image",
     .kind = InputKind::kImage,
     .required = true,
     .variants = "*-i2v-*",
     .help = "the first frame, stretched to the size of the clip",
     .fit = atelier::InputFit::kStretch,
     .when_absent = atelier::WhenAbsent::kFirstFrame},
    {.name = "end_image",
     .kind = InputKind::kImage,
     .required = true,
     .variants = "*-flf2v",
     .help = "the last frame, stretched to the size of the clip",
     .fit = atelier::InputFit::kStretch,
     .when_absent = atelier::WhenAbsent::kLastFrame},
    {.name = "image",
     .kind = InputKind::kImage,
     .required = true,
     .use = InputUse::kTrain,
     .help = "the image to learn",
     .role = atelier::InputRole::kTarget},
};

constexpr std::string_view kTextComponents[] = {"tokenizer", "text_encoder"};
constexpr std::string_view kTextInputs[] = {"prompt"};
constexpr std::string_view kImagesComponents[] = {"image_encoder"};
constexpr std::string_view kImagesInputs[] = {"input_image", "end_image"};
constexpr std::string_view kLatentsComponents[] = {"vae"};
constexpr std::string_view kLatentsInputs[] = {"image"};

constexpr atelier::EncodeStage kStages[] = {
    {.name = "text", .components = kTextComponents, .inputs = kTextInputs},
    {.name = "images",
     .components = kImagesComponents,
     .inputs = kImagesInputs,
     .variants = "wan2.1-i2v-*"},
    {.name = "given_clip",
     .components = kLatentsComponents,
     .inputs = kImagesInputs,
     .sees_target = true,
     .variants = "*-i2v-*"},
    {.name = "latents", .components = kLatentsComponents, .inputs = kLatentsInputs},
};

constexpr SigmaShift shift(double value) {
  return {.kind = SigmaShift::Kind::kConstant, .value = value};
}

// As the original repository samples.
constexpr ScheduleDefaults published(std::string_view name, std::string_view variants, int steps,
                                     double by, double cfg_scale, std::string_view help) {
  return {.name = name,
          .variants = variants,
          .num_inference_steps = steps,
          .cfg_scale = cfg_scale,
          .shift = shift(by),
          .help = help,
          .solver = "unipc",
          .grid = {.high = 0.999},
          .whole_timesteps = true};
}

constexpr std::string_view kAsPublished = "as the original repository samples";

constexpr ScheduleDefaults kSchedules[] = {
    published("default", "wan2.1-t2v-*", 50, 5, 5, kAsPublished),
    published("default", "*-flf2v", 50, 16, 5, kAsPublished),
    published("default", "*-i2v-14b", 40, 5, 5, kAsPublished),
    published("480p", "*-i2v-14b", 40, 3, 5, "the same of Wan2.1-I2V-14B-480P"),
    published("default", "wan2.2-t2v-*", 40, 12, 4, kAsPublished),
    published("default", "wan2.2-i2v-*", 40, 5, 3.5, kAsPublished),
    {.name = "diffusers",
     .num_inference_steps = 50,
     .cfg_scale = 5.0,
     .shift = shift(3),
     .help = "as the published diffusers folders sample; 5 is advised for 720 lines",
     .solver = "unipc",
     // Pure noise is a millionth less there, and its timestep 999.
     .grid = {.high = 0.999999, .low = 0.001},
     .whole_timesteps = true},
    {.name = "euler",
     .num_inference_steps = 50,
     .cfg_scale = 5.0,
     .shift = shift(5),
     .help = "straight steps, as DiffSynth-Studio samples"},
    {.name = "distill",
     .num_inference_steps = 4,
     .cfg_scale = 1.0,
     .shift = shift(5),
     .help = "distilled LoRAs (lightx2v), 4 steps without guidance"},
};

constexpr ScheduleDefaults kTrainingSchedule = {.name = "training", .shift = shift(5)};

class Family final : public atelier::ComponentFamily {
 public:
  Family() : ComponentFamily(kRows, kVariants) {}

  std::string_view name() const override { return "wan"; }
  std::string_view help() const override {
    return "Wan 2.1 and Wan 2.2 A14B: text and images to video";
  }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const atelier::EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  ScheduleDefaults training_schedule(const Detection&) const override { return kTrainingSchedule; }
  atelier::MediaDefaults media_defaults(const Detection&) const override {
    return {.target = {81, 480, 832}, .fps = 16};
  }

  // Of two experts, the first is for levels from the boundary on.
  atelier::SigmaRange sigma_range(const Detection& denoiser) const override {
    const bool is_expert = denoiser.variant.starts_with("wan2.2-");
    const double boundary = denoiser.variant.starts_with("wan2.2-i2v-") ? 0.9 : 0.875;
    if (denoiser.component == "dit2") return {.low = 0, .high = boundary};
    return {.low = is_expert ? boundary : 0, .high = 1};
  }

  atelier::LoraTargets lora_targets(const Detection& denoiser) const override {
    atelier::LoraTargets targets = {.component = denoiser.component,
                                    .include = {},
                                    .exclude = {},
                                    .file_prefix = "transformer."};
    for (const char* layer :
         {"self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "cross_attn.q",
          "cross_attn.k", "cross_attn.v", "cross_attn.o", "ffn.0", "ffn.2"})
      targets.include.push_back(std::string("blocks.*.") + layer);
    return targets;
  }

  std::unique_ptr<atelier::Model> make_model(std::span<const Detection> parts,
                                             const atelier::ModelOptions& options) const override {
    return std::make_unique<Wan>(
        rows(), parts, options,
        atelier::LatentSpec{.channels = 16, .temporal_stride = 4, .takes_clips = true});
  }
};

}  // namespace
}  // namespace wan

ATELIER_PLUGIN(wan::Family, "wan", "0.1.0")
