// The language model that reads the prompt: Gemma 2, of which the hidden state before the last
// layer is used. The last layer and the norm behind it are neither loaded nor run. Its detection is
// what caches of this family know; what computes it is the SDK's part.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "atelier/architecture.h"
#include "atelier/component_model.h"
#include "atelier/text/tokenizer.h"

namespace lumina2 {

inline constexpr int64_t kMaxPromptTokens = 256;  // <bos> and the system prompt among them

// The defaults are those of Gemma 2 2B, for what shapes do not tell.
struct Gemma2Config {
  int64_t layers = 26;  // as published: one more than are run
  int64_t width = 2304, heads = 8, kv_heads = 4, head_dim = 256, mlp_width = 9216;
  int64_t vocabulary = 256000;
  bool attention_bias = false;
  double query_scalar = 256;   // scores are divided by its root
  double softcap = 50;         // of the scores; 0: none
  int64_t window = 4096;       // tokens that some layers look back, the token itself among them
  std::vector<bool> windowed;  // of each layer; as published every second one, from the first
  double rope_theta = 10000, eps = 1e-6;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("kv_heads", kv_heads), fields("head_dim", head_dim), fields("mlp_width", mlp_width);
    fields("vocabulary", vocabulary), fields("attention_bias", attention_bias);
    fields("query_scalar", query_scalar), fields("softcap", softcap), fields("window", window);
    fields("windowed", windowed), fields("rope_theta", rope_theta), fields("eps", eps);
  }
};

// Says whether a checkpoint holds a Gemma 2, as the component "text_encoder". Its variant is left
// empty. Throws Error{kInvalidArgument} when shapes and config.json contradict each other.
//
// Spellings: "transformers" (layers.0.…), "causal_lm" (model.layers.0.…; ComfyUI's file too),
// "bundle" (transformer.model.layers.0.…, behind text_encoders.gemma2_2b. of a single file) and
// "llama_cpp" (blk.0.…; GGUF files).
std::optional<atelier::Detection> detect_gemma2(const atelier::TensorIndex& checkpoint);
std::vector<bool> every_second(int64_t layers);

// The weight table of a detection, by its spelling; see ModelFamily::weight_map.
atelier::WeightMap gemma2_map(const atelier::Detection& part);

// See ComponentRow: a parts::LanguageModel.
std::unique_ptr<atelier::nn::Module> make_gemma2(const atelier::Detection& part);

// <bos> and the tokens of the whole text that is encoded; an empty text is <bos> alone.
// Throws Error{kInvalidArgument} when the tokenizer has no <bos>.
std::vector<int64_t> prompt_ids(const atelier::text::Tokenizer& tokenizer, std::string_view text);

}  // namespace lumina2
