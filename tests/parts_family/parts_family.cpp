// A family without a denoiser: encoders, of which a language model gives three of its states, and
// an autoencoder.
#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/parts/autoencoder_kl.h"
#include "atelier/parts/clip.h"
#include "atelier/parts/language_model.h"
#include "atelier/parts/siglip.h"
#include "atelier/parts/t5.h"
#include "atelier/parts/wav2vec2.h"
#include "atelier/plugin.h"

namespace {
using namespace atelier;

constexpr std::string_view kVariants[] = {"parts"};
constexpr InputSpec kInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true, .help = "a text"}};
constexpr std::string_view kEncoders[] = {"text_encoder", "t5",         "clip_text", "normed_text",
                                          "pooled_text",  "clip_image", "siglip",    "sound"};
constexpr EncodeStage kStages[] = {{"text", kEncoders, kPromptInput}};
constexpr ScheduleDefaults kSchedules[] = {{}};

constexpr std::string_view kTypes[] = {"qwen2",   "qwen3",  "llama",
                                       "mistral", "gemma2", "gemma3_text"};
constexpr int64_t kStates[] = {1, -2, -1};
constexpr parts::LanguageModelUse kLanguageModel = {.model_types = kTypes, .states = kStates};

constexpr std::string_view kT5Types[] = {"t5", "umt5"};
constexpr parts::T5Use kT5 = {.model_types = kT5Types, .component = "t5"};

// CLIP's texts as Stable Diffusion XL reads them, as its predecessors do, and as FLUX.1 does.
constexpr int64_t kBeforeLast[] = {1, -2}, kLast[] = {-1};
constexpr parts::ClipTextUse kClipText = {.states = kBeforeLast,
                                          .norms_states = false,
                                          .pooling = parts::ClipPooling::kProjected,
                                          .component = "clip_text"};
constexpr parts::ClipTextUse kNormedText = {.states = kBeforeLast, .component = "normed_text"};
constexpr parts::ClipTextUse kPooledText = {
    .states = kLast, .pooling = parts::ClipPooling::kPlain, .component = "pooled_text"};

constexpr std::string_view kActivations[] = {"gelu", "quick_gelu"};
constexpr parts::ClipVisionUse kImages = {
    .activations = kActivations, .states = kStates, .component = "clip_image"};
constexpr parts::SiglipUse kSiglip = {.pools = true, .component = "siglip"};
constexpr parts::Wav2Vec2Use kSound = {.component = "sound"};

constexpr ComponentRow kRows[] = {parts::language_model_row<kLanguageModel>("a language model", ""),
                                  parts::t5_row<kT5>("T5 or umT5", ""),
                                  parts::clip_text_row<kClipText>("texts of CLIP", ""),
                                  parts::clip_text_row<kNormedText>("the same, normed", ""),
                                  parts::clip_text_row<kPooledText>("the same, pooled", ""),
                                  parts::clip_vision_row<kImages>("images of CLIP"),
                                  parts::siglip_row<kSiglip>("images of SigLIP"),
                                  parts::wav2vec2_row<kSound>("sound"),
                                  parts::autoencoder_kl_row("an autoencoder")};

struct Parts final : ComponentModel {
  using ComponentModel::ComponentModel;

  // Texts of CLIP also give "pooled"; images become "hidden", and what SigLIP pools; sound
  // "states".
  NamedTensors probe(std::string_view component, const NamedTensors& inputs,
                     BlockRunner& runner) override {
    nn::Module& part = this->component(component);
    if (auto* text = dynamic_cast<parts::ClipText*>(&part))
      return probe_text(*text, inputs, runner);
    if (auto* clip = dynamic_cast<parts::ClipVision*>(&part))
      return {{"hidden", clip->forward(named_tensor(inputs, "image", 3), runner)}};
    if (auto* siglip = dynamic_cast<parts::Siglip*>(&part)) {
      const at::Tensor rows = siglip->forward(named_tensor(inputs, "image", 3), runner);
      return {{"hidden", rows}, {"pooled", siglip->pooled(rows, runner)}};
    }
    if (auto* sound = dynamic_cast<parts::Wav2Vec2*>(&part)) {
      const at::Tensor samples = parts::normalised_sound(named_tensor(inputs, "samples", 1));
      return {{"states", sound->forward(samples, runner)}};
    }
    return ComponentModel::probe(component, inputs, runner);
  }

  static NamedTensors probe_text(parts::ClipText& text, const NamedTensors& inputs,
                                 BlockRunner& runner) {
    const at::Tensor& ids = named_tensor(inputs, "input_ids", 2);
    const auto lengths = lengths_of(inputs, "lengths", ids.size(0), ids.size(1));
    const Segments rows(lengths);
    const auto encoded = text.encode(pack_rows(ids, lengths), rows, runner);
    NamedTensors out = {{"hidden", pad_rows(encoded.states_ND, rows, ids.size(1))}};
    if (encoded.pooled_SD.defined()) out["pooled"] = encoded.pooled_SD;
    return out;
  }

  TextLength text_length(const EncodeInputs& in) const override {
    return {.tokens = std::ssize(text_input(in.values, "prompt")), .limit = INT64_MAX};
  }
  Conditioning encode(const EncodeInputs&, BlockRunner&) override {
    throw Error(ErrorCode::kUnsupported, "parts: nothing is made of them", "probe them");
  }
};

struct PartsFamily final : ComponentFamily {
  PartsFamily() : ComponentFamily(kRows, kVariants) {}
  std::string_view name() const override { return "parts_family"; }
  std::string_view help() const override { return "the SDK's parts, for tests"; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  LoraTargets lora_targets(const Detection&) const override { return {}; }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    return std::make_unique<Parts>(rows(), parts, options);
  }
};

}  // namespace

ATELIER_PLUGIN(PartsFamily, "parts_family", "0.1.0")
