// Decoder-only language models that read prompts: Qwen2, Qwen3, Llama, Mistral, Gemma 2 and Gemma
// 3's texts. Their hidden states are used, their heads are not.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/config_fields.h"
#include "atelier/nn/waves.h"
#include "atelier/parts/brief_detection.h"

namespace atelier::parts {

struct LanguageModelConfig {
  int64_t layers;  // as published; LanguageModel runs those that its states need
  int64_t width, heads, kv_heads, head_dim, mlp_width, vocabulary;
  bool qkv_bias;    // of queries, keys and values, as Qwen2 has them
  bool head_norms;  // RMS norms of queries and keys, as Qwen3 has them
  int64_t window;   // tokens that some layers look back, the token itself among them; 0: none
  std::vector<bool> windowed;  // of each layer
  double rope_theta, eps;
  // What is given, side by side, as transformers counts `hidden_states`: 0 are the embeddings, 9 is
  // behind 9 layers, and behind the last layer the last norm follows. Negative ones count from the
  // end: -1 is behind the last norm, -2 in front of the last layer.
  std::vector<int64_t> states;

  // What Gemma has, and no other: norms multiply by 1 + weight, in float32 to the end; further
  // norms stand behind attention and around the MLP; its gate is a GELU; embeddings are multiplied
  // by the root of the width.
  bool norms_add_one = false, has_outer_norms = false, has_gelu_gate = false,
       scales_embeddings = false;
  bool out_bias = false;        // of attention's output
  double query_scalar = 0;      // scores are divided by its root; 0: the width of a head
  double softcap = 0;           // of the scores; 0: none
  double local_rope_theta = 0;  // of layers with a window; 0: as rope_theta, stretched like it
  // Rotation is slower by `rope_factor`, by Llama 3's rule only where a wave is long: less than
  // `low_waves` of it in `first_positions`, those that the model was trained with at first, and not
  // at all where there are more than `high_waves`. high_waves 0: everywhere.
  double rope_factor = 1, low_waves = 0, high_waves = 0, first_positions = 0;
  // Weights of norms that add one are 1 + weight already, as llama.cpp's files have them, and keep
  // float32.
  bool norms_hold_one = false;

  static constexpr std::array kLater = {
      "norms_add_one", "has_outer_norms", "has_gelu_gate",    "scales_embeddings", "out_bias",
      "query_scalar",  "softcap",         "local_rope_theta", "rope_factor",       "low_waves",
      "high_waves",    "first_positions", "norms_hold_one"};

  int64_t layers_before(int64_t state) const { return state < 0 ? layers + 1 + state : state; }
  int64_t layers_run() const;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("kv_heads", kv_heads), fields("head_dim", head_dim), fields("mlp_width", mlp_width);
    fields("vocabulary", vocabulary), fields("qkv_bias", qkv_bias);
    fields("head_norms", head_norms), fields("window", window), fields("windowed", windowed);
    fields("rope_theta", rope_theta), fields("eps", eps), fields("states", states);
    fields("norms_add_one", norms_add_one), fields("has_outer_norms", has_outer_norms);
    fields("has_gelu_gate", has_gelu_gate), fields("scales_embeddings", scales_embeddings);
    fields("out_bias", out_bias), fields("query_scalar", query_scalar), fields("softcap", softcap);
    fields("local_rope_theta", local_rope_theta), fields("rope_factor", rope_factor);
    fields("low_waves", low_waves), fields("high_waves", high_waves);
    fields("first_positions", first_positions), fields("norms_hold_one", norms_hold_one);
  }
};

// Which model a family reads prompts with, and what of it.
struct LanguageModelUse {
  // Kinds that it may be of "qwen2", "qwen3", "llama", "mistral", "gemma2" and "gemma3_text", as
  // `model_type` of its config says. A file without a config is told by its tensors, which are
  // Llama's where they are Mistral's; one of Gemma 3 needs its config.
  std::span<const std::string_view> model_types;
  std::span<const int64_t> states;  // see LanguageModelConfig
  // Widths of the published model, whose rope_theta and epsilon a file without a config has.
  int64_t published_width = 0, published_mlp_width = 0;
  double rope_theta = 10000, eps = 1e-6;
  std::string_view component = "text_encoder";
};

// Says whether a checkpoint holds such a model. Its variant is left empty. Spellings:
// "transformers" (layers.0.…) and "causal_lm" (model.layers.0.…), behind no prefix or the
// component's name; of Qwen2 and Qwen3 also "llama_cpp" (blk.0.…), as GGUF files have them. Throws
// Error{kInvalidArgument} when shapes and config.json contradict each other, and
// Error{kUnsupported} for quantised files.
std::optional<Detection> detect_language_model(const TensorIndex& checkpoint,
                                               const LanguageModelUse& use);
inline constexpr std::array<const char*, 2> kLanguageModelSpellings = {"transformers", "causal_lm"};

// See ModelFamily.
ConfigFields language_model_fields(const Detection& part, const LanguageModelUse& use);
WeightMap language_model_map(const Detection& part);

// What llama.cpp's files call a weight of a LanguageModel: "blk.0.attn_q.weight" is its
// "layers.0.self_attn.q_proj.weight". has_outer_norms: see LanguageModelConfig.
std::string llama_cpp_name(const std::string& path, bool has_outer_norms);

// A small one for tests, whose numbers shapes alone tell where they are those of `use`; its width
// is kTinyLanguageModelWidth for each state.
inline constexpr int64_t kTinyLanguageModelWidth = 32;
Detection tiny_language_model(const LanguageModelUse& use);

class LanguageModelLayer;

// An RMS norm over the last axis. Weight: "weight" [width].
class LanguageModelNorm final : public nn::Module {
 public:
  LanguageModelNorm(Module* parent, std::string name, int64_t width, const LanguageModelConfig& c);
  ~LanguageModelNorm() override;

  at::Tensor forward(const at::Tensor& x) const;

  WeightPtr weight;
  double eps;
  bool is_of_gemma;  // see LanguageModelConfig::norms_add_one
  double added;      // to the weight of such a norm
};

// Weights are called as transformers calls them. A family that shows it more than tokens derives
// from it.
class LanguageModel : public TextEncoder {
 public:
  explicit LanguageModel(const LanguageModelConfig& config);
  ~LanguageModel() override;

  at::Tensor forward(const at::Tensor& ids_N, const Segments& rows, BlockRunner& runner) override;

  int64_t vocabulary() const override { return config_.vocabulary; }
  int64_t width() const override { return config_.width * std::ssize(config_.states); }

 protected:
  // What the first layer reads of tokens: [N, D].
  at::Tensor embedded(const at::Tensor& ids_N) const;
  // The states of rows [N, D] whose heads turn by `waves`, and by `local` where layers with a
  // window have a base of their own.
  at::Tensor states_of(const at::Tensor& x_ND, const nn::Waves& waves, const nn::Waves& local,
                       const Segments& rows, BlockRunner& runner);

 private:
  LanguageModelConfig config_;
  nn::Embedding embed_tokens_;
  std::vector<std::unique_ptr<LanguageModelLayer>> layers_;
  std::unique_ptr<LanguageModelNorm> norm_;  // null: no state is behind it
};

// The row of a family that reads prompts with it. `use` is static.
template <const LanguageModelUse& use>
constexpr ComponentRow language_model_row(std::string_view help,
                                          std::string_view tokenizer = "tokenizer") {
  return {.spec = {.name = use.component, .role = Role::kTextEncoder, .help = help},
          .detect = [](const TensorIndex& in) { return detect_language_model(in, use); },
          .config_fields = [](const Detection& part) { return language_model_fields(part, use); },
          .weight_map = language_model_map,
          .make = make_brief_part<LanguageModel, LanguageModelConfig>,
          .tiny = [] { return tiny_language_model(use); },
          .spellings = {kLanguageModelSpellings[0], kLanguageModelSpellings[1]},
          .tokenizer = tokenizer};
}

}  // namespace atelier::parts
