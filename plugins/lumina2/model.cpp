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
std::string text_of(const atelier::Inputs& inputs) {
  const std::string& prompt = atelier::text_input(inputs, "prompt");
  const bool* is_negative = atelier::find_input<bool>(inputs, "is_negative");
  if (prompt.empty() || (is_negative && *is_negative)) return prompt;
  const auto* given = atelier::find_input<std::string>(inputs, "system_prompt");
  const std::string system = given ? *given : std::string(kSystemPrompt);
  return system.empty() ? prompt : system + std::string(kPromptStart) + prompt;
}

}  // namespace

Lumina2::~Lumina2() = default;

atelier::Conditioning Lumina2::encode_text(const atelier::Inputs& inputs,
                                           atelier::BlockRunner& runner) {
  std::vector<int64_t> ids = prompt_ids(tokenizer(), text_of(inputs));
  cut_to_limit(ids, {.tokens = std::ssize(ids), .limit = kMaxPromptTokens},
               " with the system prompt");
  return {{atelier::kPromptEmbeds, encode_ids("text_encoder", ids, runner)}};
}

atelier::TextLength Lumina2::text_length(const atelier::Inputs& inputs) const {
  return {.tokens = std::ssize(prompt_ids(tokenizer(), text_of(inputs))),
          .limit = kMaxPromptTokens};
}

}  // namespace lumina2
