// A family of the text encoder alone, so that the program runs it and its tokenizer by themselves.
#include "atelier/error.h"
#include "atelier/plugin.h"

#include "prompt.h"
#include "umt5.h"

namespace {

using namespace atelier;

constexpr std::string_view kVariants[] = {"umt5"};
constexpr ScheduleDefaults kSchedules[] = {{.num_inference_steps = 1}};
constexpr ComponentRow kRows[] = {
    {.spec = {.name = "tokenizer", .role = Role::kTokenizer, .help = "of umT5"}},
    {.spec = {.name = "text_encoder", .role = Role::kTextEncoder, .help = "umT5"},
     .detect = wan::detect_umt5,
     .config_fields = wan::umt5_fields,
     .weight_map = wan::umt5_map,
     .make = make_part<wan::Umt5, wan::Umt5Config>,
     .tokenizer = "tokenizer"}};

struct EncoderModel final : ComponentModel {
  using ComponentModel::ComponentModel;
  Conditioning encode(const EncodeInputs&, BlockRunner&) override { return {}; }
  TextLength text_length(const EncodeInputs&) const override { return {}; }
  std::vector<int64_t> tokenize(std::string_view text) const override {
    std::vector<int64_t> ids = wan::prompt_ids(tokenizer(), text);
    if (std::ssize(ids) > wan::kMaxPromptTokens) {
      ids.resize(wan::kMaxPromptTokens);
      ids.back() = wan::end_token(tokenizer());
    }
    return ids;
  }
};

struct Family final : ComponentFamily {
  Family() : ComponentFamily(kRows, kVariants) {}
  std::string_view name() const override { return "umt5"; }
  std::string_view help() const override { return "umT5 alone"; }
  std::span<const InputSpec> inputs() const override { return {}; }
  std::span<const EncodeStage> encode_stages() const override { return {}; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  LoraTargets lora_targets(const Detection&) const override { return {}; }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    return std::make_unique<EncoderModel>(rows(), parts, options);
  }
};

}  // namespace

ATELIER_PLUGIN(Family, "umt5", "0.1.0")
