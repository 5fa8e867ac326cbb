// Wan: what it is made of, what it takes, and how it is sampled by default.
#include <algorithm>
#include <filesystem>

#include "atelier/parts/causal_vae.h"
#include "atelier/parts/clip.h"
#include "atelier/parts/t5.h"
#include "atelier/parts/wav2vec2.h"
#include "atelier/plugin.h"

#include "animate.h"
#include "config.h"
#include "dit.h"
#include "expert_names.h"
#include "fun.h"
#include "longcat.h"
#include "model.h"
#include "motion.h"
#include "s2v_stages.h"
#include "tables.h"
#include "vace.h"
#include "vap.h"

namespace wan {
namespace {

using atelier::ComponentRow;
using atelier::ConfigValue;
using atelier::Detection;
using atelier::detection_of;
using atelier::FoundPart;
using atelier::make_part;
using atelier::Role;
using atelier::ScheduleDefaults;
using atelier::parts::make_brief_part;

constexpr std::string_view kTextEncoders[] = {"umt5"};
constexpr atelier::parts::T5Use kTextEncoder = {.model_types = kTextEncoders};

constexpr std::string_view kImageActivations[] = {"gelu"};
constexpr int64_t kImageStates[] = {-2};
constexpr atelier::parts::ClipVisionUse kImageEncoder = {.activations = kImageActivations,
                                                         .states = kImageStates};

constexpr atelier::parts::Wav2Vec2Use kAudioEncoder = {};

// An expert: those are two denoisers.
Detection tiny_dit() {
  Detection part = atelier::parts::brief_detection_of("dit", "original",
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
  part.variant = kTextExperts;
  return part;
}

// The denoiser of LongCat-Video, or that of all others.
std::unique_ptr<atelier::nn::Module> make_dit(const Detection& part) {
  return is_longcat(part) ? make_part<LongCat, LongCatConfig>(part)
                          : make_brief_part<Dit, DitConfig>(part);
}

constexpr ComponentRow vace_row(atelier::ComponentSpec spec) {
  return {.spec = spec,
          .detect = detect_vace,
          .config_fields = vace_fields,
          .weight_map = vace_map,
          .make = make_part<Vace, VaceConfig>,
          .spellings = {"original", "diffusers"}};
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "tokenizer",
              .role = Role::kTokenizer,
              .help = "folder tokenizer/ or google/umt5-xxl/: tokenizer.json or spiece.model",
              .paths = {"umt5*", "tokenizer"}}},
    atelier::parts::t5_row<kTextEncoder>(
        "umT5-XXL: text_encoder/*.safetensors, models_t5_umt5-xxl-enc-bf16.pth, "
        "umt5_xxl_fp16.safetensors or GGUF"),
    atelier::parts::clip_vision_row<kImageEncoder>(
        "CLIP ViT-H/14 of variants that are shown images: image_encoder/*.safetensors, "
        "models_clip_*.pth or clip_vision_h.safetensors",
        /*required=*/false,
        "wan2.1-i2v-*|wan2.1-fun-*|*-animate2-*|wan2.2-animate-14b|wan-dancer-*"),
    atelier::parts::wav2vec2_row<kAudioEncoder>("wav2vec2-large-xlsr-53-english of Wan2.2-S2V: "
                                                "wav2vec2-large-xlsr-53-english/model.safetensors",
                                                /*required=*/false, kSpeech),
    {.spec = {.name = "vae",
              .role = Role::kVae,
              .help = "vae/*.safetensors, Wan2.1_VAE.pth or wan_2.1_vae.safetensors; of "
                      "wan2.2-ti2v-5b Wan2.2_VAE.pth or wan2.2_vae.safetensors",
              .is_float32 = true},
     .detect = detect_vae,
     .config_fields = vae_fields,
     .weight_map = atelier::parts::causal_vae_map,
     .make = atelier::parts::make_causal_vae,
     .tiny = atelier::parts::tiny_causal_vae},
    {.spec = {.name = "dit",
              .role = Role::kDenoiser,
              .help = "transformer/*.safetensors or diffusion_pytorch_model*.safetensors"},
     .detect = detect_dit,
     .config_fields = dit_fields,
     .weight_map = dit_map,
     .make = make_dit,
     .tiny = tiny_dit,
     .spellings = {"original", "diffusers"}},
    {.spec = {.name = "dit2",
              .role = Role::kDenoiser,
              .required = false,
              .help = "the expert of little noise of Wan 2.2: transformer_2/*.safetensors or "
                      "low_noise_model/*.safetensors",
              .variants = "wan2.2-*-a14b"},
     .detect = detect_dit,
     .config_fields = dit_fields,
     .weight_map = dit_map,
     .make = make_dit,
     .tiny = tiny_dit,
     .spellings = {"original", "diffusers"}},
    {.spec = {.name = "vap",
              .role = Role::kControl,
              .required = false,
              .help = "the branch of Video-As-Prompt, in one file with its dit: "
                      "transformer/*.safetensors",
              .variants = kShown,
              .beside = "dit"},
     .detect = detect_vap,
     .config_fields = vap_fields,
     .weight_map = vap_map,
     .make = make_brief_part<Vap, DitConfig>},
    {.spec = {.name = "motion_controller",
              .role = Role::kControl,
              .required = false,
              .help = "speed control of wan2.1-t2v-1.3b: model.safetensors of "
                      "Wan2.1-1.3b-speedcontrol-v1",
              .variants = kSmallText,
              .beside = "dit"},
     .detect = detect_motion,
     .config_fields = motion_fields,
     .weight_map = motion_map,
     .make = make_part<MotionController, MotionConfig>},
    {.spec = {.name = kAnimateAdapter,
              .role = Role::kControl,
              .help = "pose and face of wan2.2-animate-14b, in the denoiser's files",
              .variants = kAnimate,
              .beside = "dit"},
     .detect = detect_animate,
     .config_fields = animate_fields,
     .weight_map = animate_map,
     .make = make_part<AnimateAdapter, AnimateConfig>,
     .spellings = {"original", "diffusers"}},
    vace_row({.name = "vace",
              .role = Role::kControl,
              .required = false,
              .help = "the VACE in the DiT's file, or one that was trained: vace_blocks.*",
              .variants = "*-vace-*",
              .beside = "dit"}),
    vace_row({.name = "vace2",
              .role = Role::kControl,
              .required = false,
              .help = "that of the expert of little noise of Wan 2.2",
              .variants = kVaceExperts,
              .beside = "dit2"}),
};

// The first layers of a block that published LoRAs of a driven clip train: q, k and v.
constexpr size_t kDrivenTargets = 3;
// Added to the scores of keys of the clip's first frame, in the distilled form.
constexpr double kDistilledBias = -1.3;

// ---- Experts ----

// In the numbers of an expert alone that is not known to be that of much noise.
constexpr const char *kAlone = "alone", *kLow = "low", *kEither = "either";

bool has_channels(const Detection& part, int64_t channels) {
  const auto found = part.config.find("channels");
  return found != part.config.end() && found->second == ConfigValue(channels);
}

bool is_alone(const Detection& denoiser, const char* which) {
  const auto found = denoiser.config.find(kAlone);
  return found != denoiser.config.end() && found->second == ConfigValue(which);
}

// What files that are trained say: "dit" of the other expert would be taken for that one's.
std::string saved_component(const Detection& denoiser) {
  if (is_alone(denoiser, kLow)) return "dit2";
  return is_alone(denoiser, kEither) ? std::string() : denoiser.component;
}

bool is_wide(const Detection& part) {
  return has_channels(part, kWideChannels);
}

bool is_dancer(const Detection& part) {
  return part.variant == kDancerGlobal || part.variant == kDancerLocal;
}

// By the variant, which may be all that is known of a denoiser.
bool is_driven(const Detection& part) {
  return part.variant == kDriven || part.variant == kDrivenDistilled;
}

bool is_expert(const Detection& part) {
  constexpr std::string_view kExperts[] = {kTextExperts, kImageExperts, kVaceExperts,
                                           kControlExperts, kCameraExperts};
  return std::ranges::find(kExperts, part.variant) != std::ranges::end(kExperts);
}

// The variant that encoders work for where it tells how, and no denoiser is there to say it.
constexpr const char* kBeside = "beside";

// The denoiser's, or what stands in an encoder's numbers.
std::string variant_of(std::span<const Detection> parts) {
  for (const Detection& part : parts) {
    if (part.component.starts_with("dit")) return part.variant;
  }
  for (const Detection& part : parts) {
    const auto found = part.config.find(kBeside);
    if (found != part.config.end()) return std::get<std::string>(found->second);
  }
  return {};
}

// Whether a denoiser may be one of two experts.
bool may_be_expert(const Detection& part) {
  return !is_wide(part) && !is_longcat(part) && !hears(part) && part.integer("image_width") == 0;
}

std::string experts_of(const FoundPart& found) {
  if (const auto fun = fun_variant(atelier::parts::whole_config_of<DitConfig>(found.part)))
    return std::string(*fun);
  return std::string(found.part.integer("given_channels") > 0 ? kImageExperts : kTextExperts);
}

// The variant of a denoiser of texts that has a VACE beside it.
std::string_view beside_vace(std::string_view variant) {
  if (variant == kSmallText) return kSmallVace;
  if (variant == kText) return kVace;
  return variant == kTextExperts ? kVaceExperts : variant;
}

bool is_dit(const FoundPart& found) {
  return found.part.component.starts_with("dit");
}

bool is_vace(const FoundPart& found) {
  return found.part.component.starts_with("vace");
}

// Whether a word stands in a path, in upper case or lower.
bool says(std::string_view path, std::string_view word) {
  return lower_case(path).find(word) != std::string::npos;
}

// Whether a word stands in the name of a file, of the folder that it lies in, or of the one around
// that: a model's folder has one for each component. Folders above may be called anything.
bool is_called(const FoundPart& found, std::string_view word) {
  const std::filesystem::path path = found.path;
  const std::filesystem::path folder = path.parent_path();
  return says((folder.parent_path().filename() / folder.filename() / path.filename()).string(),
              word);
}

class Family final : public atelier::ComponentFamily {
 public:
  Family() : ComponentFamily(kRows, kVariants) {}

  std::string_view name() const override { return "wan"; }
  std::string_view help() const override { return "Wan 2.1 and Wan 2.2: text and images to video"; }
  std::span<const atelier::InputSpec> inputs() const override { return input_table(); }
  std::span<const atelier::EncodeStage> encode_stages() const override { return stage_table(); }
  std::span<const ScheduleDefaults> schedules() const override { return schedule_table(); }
  ScheduleDefaults training_schedule(const Detection&) const override {
    return wan::training_schedule();
  }
  atelier::MediaDefaults media_defaults(const Detection& denoiser) const override {
    if (denoiser.variant == kWide) return {.target = {121, 704, 1280}, .fps = 24};
    if (denoiser.variant == kAnimate) return {.target = {77, 720, 1280}, .fps = 30};
    if (is_longcat(denoiser)) return {.target = {kLongCatFrames, 480, 832}, .fps = 15};
    if (hears(denoiser)) return {.target = {81, 704, 1024}, .fps = kSpeechFps};
    if (denoiser.variant == kDancerGlobal) return {.target = {38, 1280, 720}, .fps = 7.5};
    if (denoiser.variant == kDancerLocal) return {.target = {149, 1280, 720}, .fps = 30};
    if (is_driven(denoiser)) return {.target = {81, 800, 640}, .fps = 24};
    return {.target = {81, 480, 832}, .fps = 16};
  }

  // The first of two experts is for levels from the boundary on. One alone whose path does not say
  // which it is covers all.
  atelier::SigmaRange sigma_range(const Detection& denoiser) const override {
    const bool is_early = denoiser.variant == kTextExperts || denoiser.variant == kVaceExperts;
    const double boundary = is_early ? 0.875 : 0.9;
    if (denoiser.component == "dit2" || is_alone(denoiser, kLow))
      return {.low = 0, .high = boundary};
    return {.low = is_expert(denoiser) && !is_alone(denoiser, kEither) ? boundary : 0, .high = 1};
  }

  // Experts have the same tensors: their paths tell them, else their order. One alone is "dit",
  // whichever it is.
  void assign(std::span<FoundPart> parts) const override {
    for (FoundPart& found : parts) {
      if (const std::string component = told(found); !component.empty())
        found.part.component = component;
    }
    std::vector<FoundPart*> experts;
    for (FoundPart& found : parts) {
      if (!is_dit(found)) continue;
      if (is_dancer(found.part) && found.hint.variant.empty() && is_called(found, "global"))
        found.part.variant = kDancerGlobal;
      if (may_be_expert(found.part)) {
        experts.push_back(&found);
      } else {
        found.part.component = "dit";
        if (is_driven(found.part)) assign_driven(found);
      }
    }
    assign_beside_adapter(parts);
    assign_experts(std::move(experts));
    if (std::ranges::any_of(parts, is_vace)) assign_vaces(parts);
    if (std::ranges::none_of(parts, is_dit)) assign_encoders(parts);
    // Encoders alone are told by a hint whom they encode for.
    for (FoundPart& found : parts) {
      if (found.hint.variant == kDancerGlobal) found.part.config[kBeside] = found.hint.variant;
    }
  }

  // Encoders without a denoiser are those of Wan2.2-Animate-2 where a path says so: its scripts
  // fill caches without it.
  static void assign_encoders(std::span<FoundPart> parts) {
    for (FoundPart& found : parts) {
      if (found.hint.variant.empty() && says(found.path, "animate-2")) found.part.variant = kDriven;
    }
  }

  atelier::LoraTargets lora_targets(const Detection& denoiser) const override {
    atelier::LoraTargets targets = {.component = saved_component(denoiser),
                                    .include = {},
                                    .exclude = {},
                                    .file_prefix = "transformer."};
    if (is_longcat(denoiser) || denoiser.variant == kLongCat) {
      targets.include = longcat_targets();
      return targets;
    }
    for (const char* layer :
         {"self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "cross_attn.q",
          "cross_attn.k", "cross_attn.v", "cross_attn.o", "ffn.0", "ffn.2"})
      targets.include.push_back(std::string("blocks.*.") + layer);
    if (is_driven(denoiser)) targets.include.resize(kDrivenTargets);
    if (!hears(denoiser)) return targets;
    for (const char* layer : {"q", "k", "v", "o"})
      targets.include.push_back(std::string("audio_injector.*.injector.") + layer);
    return targets;
  }

  std::unique_ptr<atelier::Model> make_model(std::span<const Detection> parts,
                                             const atelier::ModelOptions& options) const override {
    atelier::LatentSpec latents = {.channels = 16, .temporal_stride = 4, .takes_clips = true};
    if (std::ranges::any_of(parts, is_wide))
      latents = {.channels = kWideChannels,
                 .spatial_stride = 16,
                 .temporal_stride = 4,
                 .pixel_multiple = 32,
                 .token_stride = 32,
                 .takes_clips = true};
    if (variant_of(parts) == kDancerGlobal) latents.temporal_stride = 1;
    return std::make_unique<Wan>(rows(), parts, options, latents);
  }

 private:
  // A denoiser that was saved without its adapter has the tensors of image to video.
  static void assign_beside_adapter(std::span<FoundPart> parts) {
    const auto is_adapter = [](const FoundPart& found) {
      return found.part.component == kAnimateAdapter;
    };
    if (std::ranges::none_of(parts, is_adapter)) return;
    for (FoundPart& found : parts) {
      if (found.part.variant == kImages) found.part.variant = kAnimate;
    }
  }

  // The component that the user or the path says; empty: neither does.
  static std::string told(const FoundPart& found) {
    if (!found.hint.component.empty()) return found.hint.component;
    const auto expert = is_dit(found) || is_vace(found) ? expert_named(found.path) : std::nullopt;
    if (!expert) return {};
    return std::string(is_dit(found) ? "dit" : "vace") + (*expert == Expert::kLow ? "2" : "");
  }

  // The distilled form is told by a hint, or by its path.
  static void assign_driven(FoundPart& found) {
    if (found.hint.variant.empty() && is_called(found, "distill"))
      found.part.variant = kDrivenDistilled;
    if (found.part.variant == kDrivenDistilled)
      found.part.config["first_frame_bias"] = kDistilledBias;
  }

  // Files may be named beside the two experts of a model's folder, to take the place of one or
  // both.
  void assign_experts(std::vector<FoundPart*> experts) const {
    if (experts.size() == 1) return assign_alone(*experts.front());
    if (experts.size() == 2) return assign_pair(*experts.front(), *experts.back());
    const std::vector<FoundPart*> named = take_folder_pair(experts);
    if (named.empty()) return;
    if (named.size() == 2) {
      assign_pair(*experts.front(), *experts.back());
      assign_pair(*named.front(), *named.back());
    } else if (named.size() == 1 && !told(*named.front()).empty()) {
      // One that is not told is no expert, but a model that stands for both.
      assign_pair(*experts.front(), *experts.back());
      named.front()->part.component = told(*named.front());
      named.front()->part.variant = experts_of(*named.front());
    }
  }

  // Leaves the two experts that lie in two folders of one model, and returns the others; changes
  // nothing and returns none where there are no such two.
  std::vector<FoundPart*> take_folder_pair(std::vector<FoundPart*>& experts) const {
    for (FoundPart* one : experts) {
      for (FoundPart* other : experts) {
        const std::filesystem::path here = std::filesystem::path(one->path).parent_path(),
                                    there = std::filesystem::path(other->path).parent_path();
        if (here == there || here.parent_path() != there.parent_path()) continue;
        if (told(*one) != "dit" || told(*other) != "dit2") continue;
        std::vector<FoundPart*> rest = experts;
        std::erase_if(rest, [&](FoundPart* found) { return found == one || found == other; });
        experts = {one, other};
        return rest;
      }
    }
    return {};
  }

  void assign_alone(FoundPart& found) const {
    const std::string component = told(found);
    const bool is_low = component == "dit2";
    if (is_low || says_noise(found.path, Expert::kHigh) || says(found.path, "a14b"))
      found.part.variant = experts_of(found);
    if (found.part.variant == kText && is_called(found, "krea")) found.part.variant = kKrea;
    found.part.component = "dit";
    if (!is_expert(found.part)) return;
    if (is_low) found.part.config[kAlone] = std::string(kLow);
    if (component.empty()) found.part.config[kAlone] = std::string(kEither);
  }

  // A VACE stands beside the denoiser whose file it lies in. Files of their own are told by their
  // paths, else by their order.
  void assign_vaces(std::span<FoundPart> parts) const {
    const auto find_dit = [&](const auto& is_it) {
      const auto found = std::ranges::find_if(parts, [&](const FoundPart& other) {
        return other.part.component.starts_with("dit") && is_it(other);
      });
      return found == parts.end() ? nullptr : &*found;
    };
    const bool are_two =
        find_dit([](const FoundPart& dit) { return dit.part.component == "dit2"; }) != nullptr;
    int64_t alone = 0;
    for (FoundPart& found : parts) {
      if (!is_vace(found)) {
        found.part.variant = beside_vace(found.part.variant);
        continue;
      }
      const FoundPart* dit = find_dit([&](const FoundPart& one) { return one.path == found.path; });
      const std::string named = told(found);
      if (dit != nullptr) {
        found.part.component = dit->part.component == "dit2" ? "vace2" : "vace";
        found.part.variant = beside_vace(dit->part.variant);
      } else if (!are_two || named.empty()) {
        found.part.component = are_two && alone > 0 ? "vace2" : "vace";
      }
      if (dit == nullptr && named.empty()) ++alone;
    }
  }

  void assign_pair(FoundPart& one, FoundPart& other) const {
    const std::string first = told(one), second = told(other);
    const bool are_untold = first.empty() && second.empty();
    const bool are_alike = one.part.component == other.part.component;
    if (are_untold && are_alike && one.part.variant != kSmallText) other.part.component = "dit2";
    if (second.empty() && says_noise(one.path, Expert::kHigh)) other.part.component = "dit2";
    if (first.empty() && says_noise(other.path, Expert::kHigh)) one.part.component = "dit2";
    if (one.part.component == other.part.component) return;
    for (FoundPart* found : {&one, &other}) found->part.variant = experts_of(*found);
  }
};

}  // namespace
}  // namespace wan

ATELIER_PLUGIN(wan::Family, "wan", "0.1.0")
