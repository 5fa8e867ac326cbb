// What Z-Image is to the host: components, detection, weight tables, inputs, schedules.
#include <ATen/ATen.h>

#include "atelier/component_model.h"
#include "atelier/named_inputs.h"
#include "atelier/part_view.h"
#include "atelier/parts/autoencoder_kl.h"
#include "atelier/parts/language_model.h"
#include "atelier/plugin.h"

#include "dit.h"

namespace z_image {
namespace {

constexpr int64_t kMaxTokens = 512;
constexpr std::string_view kTurbo = "z-image-turbo", kBase = "z-image";
constexpr std::string_view kVariants[] = {kTurbo, kBase};
constexpr InputSpec kInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true, .help = "what the image shows"},
    {.name = "negative_prompt",
     .kind = InputKind::kText,
     .use = InputUse::kGenerate,
     .help = "what the image does not show"},
    kTargetImage,
    kStartImage};
constexpr EncodeStage kStages[] = {kTextStage, kImageStage};
constexpr double kTurboShift = 3.0, kBaseShift = 6.0;
constexpr ScheduleDefaults kSchedules[] = {
    {.variants = kTurbo,
     .num_inference_steps = 8,
     .cfg_scale = 0.0,
     .cfg_off = 0.0,
     .shift = {.kind = SigmaShift::Kind::kConstant, .value = kTurboShift},
     .help = "Z-Image-Turbo"},
    {.variants = kBase,
     .num_inference_steps = 50,
     .cfg_scale = 4.0,
     .cfg_off = 0.0,
     .shift = {.kind = SigmaShift::Kind::kConstant, .value = kBaseShift},
     .help = "Z-Image"}};

// The prompt is read by Qwen3-4B, in front of its last layer.
constexpr std::string_view kTypes[] = {"qwen3"};
constexpr int64_t kStates[] = {-2};
constexpr parts::LanguageModelUse kQwen3 = {.model_types = kTypes,
                                            .states = kStates,
                                            .published_width = 2560,
                                            .published_mlp_width = 9728,
                                            .rope_theta = 1e6};

std::optional<Detection> detect_dit(const TensorIndex& in) {
  static constexpr std::string_view kPrefixes[] = {"", "model.diffusion_model."};
  static constexpr std::string_view kMarkers[] = {"all_x_embedder.2-1.weight", "x_pad_token"};
  const auto prefix = find_prefix(in, kPrefixes, kMarkers);
  if (!prefix) return std::nullopt;
  const PartView part(in, *prefix, "DiT");
  const bool is_diffusers = part.contains("all_x_embedder.2-1.weight");
  const std::string x = is_diffusers ? "all_x_embedder.2-1.weight" : "x_embedder.weight";
  if (!part.contains(x) || !part.contains("noise_refiner.0.attention_norm1.weight"))
    return std::nullopt;
  part.refuse_quantised();
  if (part.contains("siglip_pad_token"))
    refuse_kind("Z-Image Omni", "this plugin makes images from texts");
  const int64_t head_dim = part.dim(
      is_diffusers ? "layers.0.attention.norm_q.weight" : "layers.0.attention.q_norm.weight", 0);
  DitConfig c{};
  c.channels = part.parts(x, 1, 4);
  c.width = part.dim(x, 0);
  c.layers = part.block_count("layers.{}.attention_norm1.weight");
  c.refiners = part.block_count("noise_refiner.{}.attention_norm1.weight");
  c.heads = part.parts("layers.0.attention_norm1.weight", 0, head_dim);
  c.mlp_width = part.dim("layers.0.feed_forward.w1.weight", 0);
  c.time_width = part.dim("t_embedder.mlp.2.weight", 0);
  c.time_hidden = part.dim("t_embedder.mlp.0.weight", 0);
  c.text_width = part.dim("cap_embedder.1.weight", 1);
  part.require_config(c.width == 3840 && head_dim == 128,
                      "norm_eps, rope_theta, t_scale, axes_dims");
  c.norm_eps = in.config_real("norm_eps").value_or(1e-5);
  c.rope_theta = in.config_real("rope_theta").value_or(256.0);
  c.time_scale = in.config_real("t_scale").value_or(1000.0);
  c.axes =
      part.rope_axes("axes_dims", head_dim, {head_dim / 4, 3 * head_dim / 8, 3 * head_dim / 8});
  return detection_of("dit", is_diffusers ? "diffusers" : "original", c, *prefix);
}

ConfigFields dit_fields(const Detection& part) {
  const auto c = config_of<DitConfig>(part);
  ConfigFields fields;
  fields.of_diffusers({"ZImageTransformer2DModel"})
      .read({"norm_eps", "rope_theta", "t_scale", "axes_dims"})
      .ignored({"axes_lens"})
      .told("in_channels", {c.channels})
      .told("dim", {c.width})
      .told("n_layers", {c.layers})
      .told("n_refiner_layers", {c.refiners})
      .told("n_heads", {c.heads})
      .told("n_kv_heads", {c.heads})
      .told("cap_feat_dim", {c.text_width})
      .fixed("qk_norm", {true})
      .fixed("siglip_feat_dim", {nullptr})
      .fixed("all_patch_size", {std::vector<double>{2}})
      .fixed("all_f_patch_size", {std::vector<double>{1}});
  return fields;
}

WeightMap dit_map(const Detection& part) {
  const bool is_diffusers = part.spelling == "diffusers";
  static constexpr Renamed kDiffusers[] = {
      {"final_layer.modulation.", "all_final_layer.2-1.adaLN_modulation.1."},
      {"final_layer.linear", "all_final_layer.2-1.linear"},
      {".modulation.", ".adaLN_modulation.0."},
      {"x_embedder.", "all_x_embedder.2-1."},
      {"t_embedder.", "t_embedder.mlp."}};
  static constexpr Renamed kOriginal[] = {
      {"final_layer.modulation.", "final_layer.adaLN_modulation.1."},
      {".modulation.", ".adaLN_modulation.0."},
      {"t_embedder.", "t_embedder.mlp."},
      {"attention.to_out.0.", "attention.out."},
      {"attention.to_q.", "attention.qkv."},
      {"attention.to_k.", "attention.qkv."},
      {"attention.to_v.", "attention.qkv."},
      {"attention.norm_q.", "attention.q_norm."},
      {"attention.norm_k.", "attention.k_norm."}};
  const auto dit = make_part<Dit, DitConfig>(part);
  WeightMap map = named_weights(*dit, [&](const std::string& path) {
    return is_diffusers ? renamed(path, kDiffusers) : renamed(path, kOriginal);
  });
  if (!is_diffusers) {
    for (WeightRule& rule : map)
      if (rule.from.find(".qkv.") != std::string::npos) rule.axis = 0;
    map.push_back({.from = "norm_final.weight"});
  }
  return map;
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "tokenizer", .role = Role::kTokenizer, .help = "folder tokenizer/, of Qwen3"},
     .tokenizer_rules = text::ByteLevelRules{.tokenizer_class = "Qwen2Tokenizer",
                                             .nfc = true,
                                             .single_digits = true,
                                             .added_tokens = {"<|im_start|>", "<|im_end|>"}}},
    parts::language_model_row<kQwen3>("Qwen3-4B"),
    parts::autoencoder_kl_row("AutoencoderKL of FLUX.1"),
    {.spec = {.name = "dit", .role = Role::kDenoiser, .help = "Z-Image or Z-Image-Turbo"},
     .detect = detect_dit,
     .config_fields = dit_fields,
     .weight_map = dit_map,
     .make = make_part<Dit, DitConfig>,
     .tiny =
         [] {
           return detection_of(
               "dit", "diffusers",
               DitConfig{16, 64, 2, 1, 4, 170, 64, 48, 32, 1e-5, 256.0, 1000.0, {4, 6, 6}});
         },
     .spellings = {"diffusers", "original"}}};

struct ZImage final : ComponentModel {
  using ComponentModel::ComponentModel;

  std::vector<int64_t> ids_of(const EncodeInputs& in) const {
    return tokenizer().encode("<|im_start|>user\n" + text_input(in.values, "prompt") +
                              "<|im_end|>\n<|im_start|>assistant\n");
  }
  TextLength text_length(const EncodeInputs& in) const override {
    return {.tokens = std::ssize(ids_of(in)), .limit = kMaxTokens};
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner& runner) override {
    if (in.stage == "latents") return encode_latents(in.values, "image", runner);
    std::vector<int64_t> ids = ids_of(in);
    cut_to_limit(ids, {.tokens = std::ssize(ids), .limit = kMaxTokens});
    return {{kPromptEmbeds, encode_ids("text_encoder", ids, runner)}};
  }
  at::Tensor guide(const GuideInputs& in, BlockRunner&) override {
    return in.with_BCTHW + in.scale * (in.with_BCTHW - in.without_BCTHW);
  }
};

struct ZImageFamily final : ComponentFamily {
  ZImageFamily() : ComponentFamily(kRows, kVariants) {}
  std::string_view name() const override { return "z_image"; }
  std::string_view help() const override { return "Z-Image and Z-Image-Turbo: text to image"; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  // Both models have the same tensors and configs; the scheduler of their folder tells them apart,
  // and --model_hints where there is none.
  void assign(std::span<FoundPart> parts) const override {
    ComponentFamily::assign(parts);
    for (FoundPart& found : parts) {
      const auto shift = TensorIndex({}, found.folder).config_real("scheduler.shift");
      if (shift == kBaseShift) found.part.variant = kBase;
    }
  }
  LoraTargets lora_targets(const Detection&) const override {
    return {.include = {"*.attention.to_*", "*.feed_forward.w*"}, .file_prefix = "transformer."};
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    return std::make_unique<ZImage>(rows(), parts, options);
  }
};

}  // namespace
}  // namespace z_image

ATELIER_PLUGIN(z_image::ZImageFamily, "z_image", "0.1.0")
