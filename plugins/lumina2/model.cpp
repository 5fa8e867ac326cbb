#include "model.h"

#include "atelier/named_inputs.h"

#include "gemma2.h"

namespace lumina2 {
namespace {

constexpr std::string_view kSystemPrompt =
    "You are an assistant designed to generate superior images with the superior degree of "
    "image-text alignment based on textual prompts or user prompts.";
constexpr std::string_view kPromptStart = " <Prompt Start> ";

// The whole text that is encoded.
std::string text_of(const atelier::EncodeInputs& in) {
  const std::string& prompt = atelier::text_input(in.values, "prompt");
  if (prompt.empty() || in.is_negative) return prompt;
  const auto* given = atelier::find_input<std::string>(in.values, "system_prompt");
  const std::string system = given ? *given : std::string(kSystemPrompt);
  return system.empty() ? prompt : system + std::string(kPromptStart) + prompt;
}

}  // namespace

Lumina2::~Lumina2() = default;

atelier::Conditioning Lumina2::encode(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner) {
  if (in.stage == "latents") return encode_latents(in.values, "image", runner);
  std::vector<int64_t> ids = prompt_ids(tokenizer(), text_of(in));
  cut_to_limit(ids, {.tokens = std::ssize(ids), .limit = kMaxPromptTokens},
               " with the system prompt");
  return {{atelier::kPromptEmbeds, encode_ids("text_encoder", ids, runner)}};
}

atelier::TextLength Lumina2::text_length(const atelier::EncodeInputs& in) const {
  return {.tokens = std::ssize(prompt_ids(tokenizer(), text_of(in))), .limit = kMaxPromptTokens};
}

}  // namespace lumina2
