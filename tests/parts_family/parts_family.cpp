// A family without a denoiser: a language model that gives three of its states, and an autoencoder.
#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/parts/autoencoder_kl.h"
#include "atelier/parts/language_model.h"
#include "atelier/plugin.h"

namespace {
using namespace atelier;

constexpr std::string_view kVariants[] = {"parts"};
constexpr InputSpec kInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true, .help = "a text"}};
constexpr std::string_view kEncoder[] = {"text_encoder"};
constexpr EncodeStage kStages[] = {{"text", kEncoder, kPromptInput}};
constexpr ScheduleDefaults kSchedules[] = {{}};

constexpr std::string_view kTypes[] = {"qwen2", "qwen3", "llama", "mistral"};
constexpr int64_t kStates[] = {1, -2, -1};
constexpr parts::LanguageModelUse kLanguageModel = {.model_types = kTypes, .states = kStates};

constexpr ComponentRow kRows[] = {parts::language_model_row<kLanguageModel>("a language model", ""),
                                  parts::autoencoder_kl_row("an autoencoder")};

struct Parts final : ComponentModel {
  using ComponentModel::ComponentModel;
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
