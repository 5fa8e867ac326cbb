// Qwen-Image: what it is made of, what it takes, and how it is sampled by default.
#include <algorithm>
#include <cctype>
#include <filesystem>

#include "atelier/error.h"
#include "atelier/parts/causal_vae.h"
#include "atelier/plugin.h"

#include "blockwise.h"
#include "config.h"
#include "controlnet.h"
#include "controls.h"
#include "dit.h"
#include "layered.h"
#include "model.h"
#include "regions.h"
#include "text_encoder.h"
#include "vision.h"
#include "weights.h"

namespace qwen_image {
namespace {

using atelier::ComponentRow;
using atelier::Detection;
using atelier::FoundPart;
using atelier::InputKind;
using atelier::InputSpec;
using atelier::InputUse;
using atelier::make_part;
using atelier::Role;
using atelier::ScheduleDefaults;
using atelier::SigmaShift;
using atelier::nn::Module;

// Has numbers that shapes alone tell, so that no config.json is needed.
Detection tiny_text_encoder() {
  return detection_of_text_encoder({.layers = 2,
                                    .width = 48,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 128,
                                    .mlp_width = 80,
                                    .vocabulary = 512,
                                    .window = 0,
                                    .windowed = {false, false},
                                    .rope_theta = 1e6,
                                    .eps = 1e-6,
                                    .sections = {16, 24, 24}},
                                   "disk");
}

Detection tiny_dit() {
  return detection_of_dit({.layers = 2,
                           .width = 64,
                           .heads = 2,
                           .head_dim = 32,
                           .mlp_width = 256,
                           .text_width = 48,
                           .channels = 16,
                           .axes = {4, 14, 14}});
}

std::unique_ptr<Module> make_dit(const Detection& part) {
  return std::make_unique<Dit>(dit_config(part));
}

std::unique_ptr<Module> make_text_encoder(const Detection& part) {
  return std::make_unique<TextEncoder>(text_encoder_config(part));
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "tokenizer",
              .role = Role::kTokenizer,
              .help = "folder tokenizer/: tokenizer.json, or vocab.json and merges.txt"}},
    {.spec = {.name = "text_encoder",
              .role = Role::kTextEncoder,
              .help =
                  "Qwen2.5-VL 7B: text_encoder/*.safetensors, qwen_2.5_vl_7b.safetensors or GGUF"},
     .detect = detect_text_encoder,
     .config_fields = text_encoder_fields,
     .weight_map = text_encoder_map,
     .make = make_text_encoder,
     .tiny = tiny_text_encoder,
     .tokenizer = "tokenizer",
     .tokenizer_rules = atelier::text::ByteLevelRules{.tokenizer_class = "Qwen2Tokenizer",
                                                      .nfc = true,
                                                      .single_digits = true,
                                                      .added_tokens = {"<|endoftext|>"}}},
    {.spec =
         {.name = "vision_tower",
          .role = Role::kImageEncoder,
          .required = false,
          .help =
              "of Qwen2.5-VL, in the text encoder's files, of GGUF in its mmproj file: sees the "
              "pictures to be edited",
          .variants = kEditVariants},
     .detect = detect_vision,
     .config_fields = vision_fields,
     .weight_map = vision_map,
     .make = make_vision},
    {.spec = {.name = "vae",
              .role = Role::kVae,
              .help = "vae/*.safetensors or qwen_image_vae.safetensors"},
     .detect = detect_vae,
     .config_fields = vae_fields,
     .weight_map = atelier::parts::causal_vae_map,
     .make = atelier::parts::make_causal_vae,
     .tiny = atelier::parts::tiny_causal_vae},
    {.spec = {.name = "dit",
              .role = Role::kDenoiser,
              .help = "transformer/*.safetensors or qwen_image_bf16.safetensors"},
     .detect = detect_dit,
     .config_fields = dit_fields,
     .weight_map = dit_map,
     .make = make_dit,
     .tiny = tiny_dit},
    {.spec = {.name = kBlockwise,
              .role = Role::kControl,
              .required = false,
              .help = "Qwen-Image-Blockwise-ControlNet-{Canny,Depth,Inpaint}: model.safetensors",
              .variants = kOpaqueVariants,
              .beside = "dit",
              .max_count = kMaxControls},
     .detect = detect_blockwise,
     .config_fields = blockwise_fields,
     .weight_map = blockwise_map,
     .make = make_part<Blockwise, BlockwiseConfig>},
    {.spec = {.name = kControlNet,
              .role = Role::kControl,
              .required = false,
              .help = "InstantX/Qwen-Image-ControlNet-{Union,Inpainting}: "
                      "diffusion_pytorch_model.safetensors",
              .variants = kOpaqueVariants,
              .beside = "dit",
              .max_count = kMaxControls},
     .detect = detect_controlnet,
     .config_fields = controlnet_fields,
     .weight_map = controlnet_map,
     .make = make_part<ControlNet, ControlNetConfig>},
};

// A number of each picture that a kind of ControlNet follows; one counts for all.
constexpr InputSpec control_number(const char* name, InputUse use, std::string_view help) {
  return {.name = name,
          .kind = InputKind::kReal,
          .use = use,
          .variants = kOpaqueVariants,
          .help = help,
          .max_count = kMaxControls};
}

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
     .help = "the image to learn; of layers the picture of them all, then each of them",
     .role = atelier::InputRole::kTarget,
     .max_count = kMostLayers + 1,
     .channels = 4},
    {.name = "edit_image",
     .kind = InputKind::kImage,
     .required = true,
     .variants = kEditVariants,
     .help = "pictures to change, in any size; the image is as large as the last one",
     .max_count = kMaxReferences,
     .fit = atelier::InputFit::kAsIs},
    {.name = "edit_image_auto_resize",
     .kind = InputKind::kFlag,
     .variants = kEditVariants,
     .help = "off: pictures keep their size, and are not brought to 1024 x 1024 pixels"},
    {.name = "edit_rope_interpolation",
     .kind = InputKind::kFlag,
     .use = InputUse::kGenerate,
     .variants = kEditVariants,
     .help = "places in the pictures are those of the image, for LoRAs that enlarge"},
    {.name = "zero_cond_t",
     .kind = InputKind::kFlag,
     .variants = kEditVariants,
     .help = "pictures are clean at every noise level; false: as noisy as the image; else as the "
             "model says"},
    {.name = kContext,
     .kind = InputKind::kImage,
     .variants = kContextVariants,
     .help =
         "a picture beside the image, of the same size, for LoRAs of In-Context-Control: edges, "
         "depth, poses; of Layered-Control-V2: a mask",
     .channels = 4,
     .fit = atelier::InputFit::kStretch,
     .when_absent = atelier::WhenAbsent::kLeftOut},
    {.name = kLayerInput,
     .kind = InputKind::kImage,
     .required = true,
     .variants = kLayeredVariants,
     .help = "the picture that is taken apart, with or without transparency",
     .channels = 4,
     .fit = atelier::InputFit::kStretch,
     .filter = atelier::ResizeFilter::kLanczos,
     .lies_on_target = true},
    {.name = kLayerNumber,
     .kind = InputKind::kInteger,
     .variants = kLayeredVariants,
     .help = "layers beside the picture of them all, from 0; else 4, of Layered-Control 0"},
    {.name = kNormalize,
     .kind = InputKind::kFlag,
     .use = InputUse::kGenerate,
     .variants = kLayeredVariants,
     .help = "guidance keeps the length of each token's velocity"},
    {.name = kBlockwiseKind.image,
     .kind = InputKind::kImage,
     .variants = kOpaqueVariants,
     .help = "a picture for each blockwise ControlNet to follow, in the order of their files",
     .max_count = kMaxControls},
    {.name = kBlockwiseKind.mask,
     .kind = InputKind::kMask,
     .variants = kOpaqueVariants,
     .help = "white where that picture is made anew, for ControlNets of inpainting",
     .max_count = kMaxControls},
    control_number(kBlockwiseKind.scale, InputUse::kBoth, "how much each of them counts; else 1"),
    control_number(kBlockwiseKind.start, InputUse::kGenerate,
                   "part of the way that is left from which on each counts; else 1, all of it"),
    control_number(kBlockwiseKind.end, InputUse::kGenerate,
                   "part of the way that is left at which each stops to count; else 0"),
    {.name = kControlNetKind.image,
     .kind = InputKind::kImage,
     .variants = kOpaqueVariants,
     .help = "a picture for each ControlNet to follow, or several for one: edges, depth, poses, a "
             "picture to be filled in",
     .max_count = kMaxControls},
    {.name = kControlNetKind.mask,
     .kind = InputKind::kMask,
     .variants = kOpaqueVariants,
     .help = "white where control_image is filled in, for ControlNets of inpainting",
     .max_count = kMaxControls},
    control_number(kControlNetKind.scale, InputUse::kBoth, "how much each picture counts; else 1"),
    control_number(kControlNetKind.start, InputUse::kGenerate,
                   "part of the steps behind which each counts; else 0"),
    control_number(kControlNetKind.end, InputUse::kGenerate,
                   "part of the steps behind which each counts no more; else 1"),
    {.name = "input_image",
     .kind = InputKind::kImage,
     .use = InputUse::kGenerate,
     .variants = kOpaqueVariants,
     .help = "image to start from, scaled and cropped to --height and --width",
     .role = atelier::InputRole::kStart},
    {.name = kEntityPrompts,
     .kind = InputKind::kText,
     .variants = kOpaqueVariants,
     .help = "what the image shows in each region, for LoRAs of EliGen",
     .max_count = kMaxEntities,
     .paired_with = kEntityMasks},
    {.name = kEntityMasks,
     .kind = InputKind::kImage,
     .variants = kOpaqueVariants,
     .help = "white where the image shows each of eligen_entity_prompts, in any size; regions may "
             "overlap",
     .max_count = kMaxEntities,
     .fit = atelier::InputFit::kAsIs,
     .paired_with = kEntityPrompts,
     .lies_on_target = true},
    {.name = kEntitiesOnNegative,
     .kind = InputKind::kFlag,
     .use = InputUse::kGenerate,
     .variants = kOpaqueVariants,
     .help = "the negative prompt stands in each region, too, on the negative branch of guidance"},
};

constexpr std::string_view kTextComponents[] = {"tokenizer", "text_encoder", "vision_tower"};
constexpr std::string_view kTextInputs[] = {"prompt", "edit_image", "edit_image_auto_resize"};
constexpr std::string_view kReferencesInputs[] = {"edit_image", "edit_image_auto_resize",
                                                  "edit_rope_interpolation", "zero_cond_t"};

constexpr std::string_view kContextInputs[] = {kContext};
constexpr std::string_view kLayerInputs[] = {kLayerInput, kContext, kNormalize};
constexpr std::string_view kBlockwiseComponents[] = {"vae", kBlockwise};
constexpr std::string_view kBlockwiseInputs[] = {kBlockwiseKind.image, kBlockwiseKind.mask,
                                                 kBlockwiseKind.scale, kBlockwiseKind.start,
                                                 kBlockwiseKind.end};
constexpr std::string_view kControlNetComponents[] = {"vae", kControlNet};
constexpr std::string_view kControlNetInputs[] = {kControlNetKind.image, kControlNetKind.mask,
                                                  kControlNetKind.scale, kControlNetKind.start,
                                                  kControlNetKind.end};

constexpr std::string_view kEntityComponents[] = {"tokenizer", "text_encoder"};
constexpr std::string_view kEntityInputs[] = {kEntityPrompts, kEntityMasks, kEntitiesOnNegative};

constexpr atelier::EncodeStage kStages[] = {
    {.name = "text",
     .components = kTextComponents,
     .inputs = kTextInputs,
     .kept_as = kControlPrompt},
    {.name = "references",
     .components = atelier::kLatentsComponents,
     .inputs = kReferencesInputs,
     .variants = kEditVariants},
    {.name = "references",
     .components = atelier::kLatentsComponents,
     .inputs = kContextInputs,
     .variants = kTextVariants},
    {.name = "references",
     .components = atelier::kLatentsComponents,
     .inputs = kLayerInputs,
     .variants = kLayeredVariants},
    {.name = kBlockwise,
     .components = kBlockwiseComponents,
     .inputs = kBlockwiseInputs,
     .variants = kOpaqueVariants},
    {.name = kControlNet,
     .components = kControlNetComponents,
     .inputs = kControlNetInputs,
     .variants = kOpaqueVariants},
    {.name = kEntities,
     .components = kEntityComponents,
     .inputs = kEntityInputs,
     .sees_target = true,
     .variants = kOpaqueVariants,
     .per_branch = true},
    atelier::kImageStage,
};

constexpr SigmaShift kDynamicShift = {.kind = SigmaShift::Kind::kByTokens,
                                      .base = 0.5,
                                      .max = 0.9,
                                      .base_tokens = 256,
                                      .max_tokens = 8192};

constexpr ScheduleDefaults published(std::string_view variants, int steps, std::string_view help) {
  return {.name = "default",
          .variants = variants,
          .num_inference_steps = steps,
          .cfg_scale = 4.0,
          .shift = kDynamicShift,
          .terminal_sigma = 0.02,
          .help = help};
}

// Levels end without a terminal one.
constexpr ScheduleDefaults layered(std::string_view variant, int steps, std::string_view help) {
  return {.name = "default",
          .variants = variant,
          .num_inference_steps = steps,
          .cfg_scale = 4.0,
          .shift = {.kind = SigmaShift::Kind::kFunction,
                    .function = layered_shift,
                    .of_one_frame = true},
          .help = help};
}

constexpr ScheduleDefaults kSchedules[] = {
    published("qwen-image", 50, "Qwen-Image"),
    published("qwen-image-edit-25*", 40, "Qwen-Image-Edit-2509 and -2511"),
    published("firered-*", 40, "FireRed-Image-Edit"),
    layered(kLayeredVariant, 50, "Qwen-Image-Layered"),
    layered(kLayeredControlVariant, 30, "Qwen-Image-Layered-Control"),
    published("*", 50, "Qwen-Image-2512 and Qwen-Image-Edit"),
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

// A path as names of variants are spelt.
std::string spelt_as_variant(std::string path) {
  for (char& c : path) {
    if (c == '_') c = '-';
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return path;
}

// The variant that a path names, as published files and folders are called; empty: none.
std::string_view variant_in(const std::string& given) {
  const std::string path = spelt_as_variant(given);
  for (const std::string_view name :
       {"firered-image-edit", "qwen-image-edit-2511", "qwen-image-edit-2509", "qwen-image-edit"}) {
    if (path.find(name) != std::string::npos) return name;
  }
  return {};
}

// The denoisers that make layers: tensors tell them from all others.
void name_layered(FoundPart& dit) {
  if (!has_clean_references(dit.part)) dit.part.config.erase(kCleanReferences);
  if (!dit.hint.variant.empty()) return;
  const bool is_control = spelt_as_variant(dit.path).find("layered-control") != std::string::npos;
  dit.part.variant = is_control ? kLayeredControlVariant : kLayeredVariant;
}

void name_variant(FoundPart& dit) {
  if (makes_layers(dit.part)) return name_layered(dit);
  if (dit.hint.variant.empty()) {
    const std::string_view named = variant_in(dit.path);
    if (!named.empty()) dit.part.variant = named;
    const bool is_clean = has_clean_references(dit.part);
    if (is_clean) dit.part.variant = kCleanReferencesVariant;
    // Its config says that it is not what its path is called; all else is as in this one.
    const bool is_said = dit.part.config.contains(kCleanReferences);
    if (is_said && !is_clean && named == kCleanReferencesVariant)
      dit.part.variant = "qwen-image-edit-2509";
  }
  dit.part.config.erase(kCleanReferences);
  if (dit.part.variant == kCleanReferencesVariant) dit.part.config[kCleanReferences] = true;
}

// Whether the user, or what its file and the two folders around it are called, says of what model a
// denoiser is.
bool is_told(const FoundPart& dit) {
  const std::filesystem::path file = dit.path, folder = file.parent_path();
  const std::filesystem::path called =
      folder.parent_path().filename() / folder.filename() / file.filename();
  return !dit.hint.variant.empty() || !variant_in(dit.path).empty() ||
         spelt_as_variant(called.string()).find("qwen-image") != std::string::npos;
}

// A denoiser that nothing tells, as a GGUF or what a LoRA was merged into, takes the place of the
// one that is told beside it: that of the model's folder.
void take_variant_beside(std::span<FoundPart> parts) {
  const auto is_plain = [](const FoundPart& found) {
    return found.part.component == "dit" && !makes_layers(found.part) &&
           found.part.variant != kCleanReferencesVariant;
  };
  const auto beside = std::ranges::find_if(
      parts, [&](const FoundPart& found) { return is_plain(found) && is_told(found); });
  if (beside == parts.end()) return;
  for (FoundPart& found : parts) {
    if (is_plain(found) && !is_told(found)) found.part.variant = beside->part.variant;
  }
}

class Family final : public atelier::ComponentFamily {
 public:
  Family() : ComponentFamily(kRows, kVariants) {}

  std::string_view name() const override { return "qwen_image"; }
  std::string_view help() const override {
    return "Qwen-Image, -2512, -Edit and -Layered: text and pictures to image, and to layers";
  }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const atelier::EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  ScheduleDefaults training_schedule(const Detection&) const override { return kTrainingSchedule; }

  atelier::MediaDefaults media_defaults(const Detection& denoiser) const override {
    if (is_layered(denoiser.variant)) return layered_defaults(denoiser.variant);
    return ComponentFamily::media_defaults(denoiser);
  }

  std::optional<Detection> detect(const atelier::TensorIndex& checkpoint,
                                  const atelier::DetectHint& hint) const override {
    std::optional<Detection> part = ComponentFamily::detect(checkpoint, hint);
    if (part && part->component == "dit" && makes_layers(*part) != is_layered(part->variant)) {
      throw atelier::Error(
          atelier::ErrorCode::kInvalidArgument,
          std::string("the tensors are ") + (makes_layers(*part) ? "those" : "none") +
              " of Qwen-Image-Layered, and variant " + part->variant + " is asked for");
    }
    return part;
  }

  // Denoisers of all other variants have the same tensors; what was said, a config and the path
  // tell them apart. Encodings depend on how the variant words its prompts, so that the encoder has
  // it, too: where there is no denoiser, that which was said.
  void assign(std::span<FoundPart> parts) const override {
    ComponentFamily::assign(parts);
    std::string variant, said;
    for (FoundPart& found : parts) {
      if (found.part.component == "dit") name_variant(found);
    }
    take_variant_beside(parts);
    for (const FoundPart& found : parts) {
      if (said.empty()) said = found.hint.variant;
      if (found.part.component == "dit") variant = found.part.variant;
    }
    if (variant.empty()) variant = said;
    if (!edits(variant)) return;
    for (FoundPart& found : parts) {
      if (found.part.component == "text_encoder") found.part.variant = variant;
    }
  }

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
