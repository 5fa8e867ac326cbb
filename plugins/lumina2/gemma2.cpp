#include "gemma2.h"

#include "atelier/error.h"
#include "atelier/part_view.h"
#include "atelier/parts/language_model.h"

namespace lumina2 {

using atelier::Detection;
using atelier::Error;
using atelier::ErrorCode;
using atelier::kOwnConfig;
using atelier::PartView;
using atelier::TensorIndex;
using atelier::parts::LanguageModel;
using atelier::parts::LanguageModelConfig;

namespace {

// The spelling of GGUF files, whose norms hold 1 + weight.
constexpr const char* kLlamaCpp = "llama_cpp";

// Where the names of a file begin, and what stands before those of the language model behind it.
struct GemmaSpelling {
  const char* prefix;
  const char* stem;
  const char* name;
};
constexpr GemmaSpelling kGemmaSpellings[] = {
    {"", "", "transformers"},
    {"text_encoder.", "", "transformers"},
    {"", "model.", "causal_lm"},
    {"text_encoder.", "model.", "causal_lm"},
    {"text_encoders.gemma2_2b.", "transformer.model.", "bundle"},
    {"", "", kLlamaCpp},
};
constexpr const char* kMarker = "layers.0.post_feedforward_layernorm.weight";

constexpr std::string_view kLayerBiases[] = {
    "self_attn.q_proj.bias",
    "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",
    "self_attn.o_proj.bias",
};
constexpr std::string_view kLayerWeights[] = {
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "post_feedforward_layernorm.weight",
};

// What a file calls a weight behind its stem.
std::string spelled(std::string_view spelling, const std::string& weight) {
  if (spelling != kLlamaCpp) return weight;
  return atelier::parts::llama_cpp_name(weight, /*has_outer_norms=*/true);
}

Gemma2Config read_config(const PartView& view, std::string_view spelling) {
  const TensorIndex& index = view.index();
  const auto integer = [&](const char* key, int64_t otherwise) {
    return index.config_integer(key).value_or(otherwise);
  };
  const auto real = [&](const char* key, double otherwise) {
    return index.config_real(key).value_or(otherwise);
  };
  const auto name = [&](const char* weight) { return spelled(spelling, weight); };
  const std::string tokens = name("embed_tokens.weight"),
                    queries = name("layers.0.self_attn.q_proj.weight"),
                    keys = name("layers.0.self_attn.k_proj.weight");
  Gemma2Config c;
  const int64_t there = view.block_count(name("layers.{}.self_attn.q_proj.weight"));
  c.layers = integer("num_hidden_layers", there);
  c.vocabulary = view.dim(tokens, 0);
  c.width = view.dim(tokens, 1);
  c.mlp_width = view.dim(name("layers.0.mlp.gate_proj.weight"), 0);
  view.require_config(c.width == 2304 && c.mlp_width == 9216 && view.dim(queries, 0) == 2048 &&
                          view.dim(keys, 0) == 1024,
                      "head_dim, query_pre_attn_scalar, attn_logit_softcapping, sliding_window and "
                      "rope_theta");
  c.head_dim = integer("head_dim", c.head_dim);
  c.heads = view.parts(queries, 0, c.head_dim, kOwnConfig);
  c.kv_heads = view.parts(keys, 0, c.head_dim, kOwnConfig);
  view.check_heads(c.heads, c.kv_heads, c.head_dim);
  // The last layer is not run, so a file may lack it.
  if (c.layers < 2 || there < c.layers - 1 || there > c.layers) {
    view.refuse("has " + std::to_string(there) + " layers, num_hidden_layers is " +
                    std::to_string(c.layers),
                kOwnConfig);
  }
  c.attention_bias = view.contains(name("layers.0.self_attn.q_proj.bias"));
  c.query_scalar = real("query_pre_attn_scalar", c.query_scalar);
  const bool is_capped = !index.has_null("attn_logit_softcapping");
  c.softcap = is_capped ? real("attn_logit_softcapping", c.softcap) : 0;
  c.window = integer("sliding_window", c.window);
  c.windowed = view.layer_windows("layer_types", c.layers).value_or(every_second(c.layers));
  c.rope_theta = atelier::rope_theta(index).value_or(c.rope_theta);
  c.eps = real("rms_norm_eps", c.eps);
  if (!(c.query_scalar > 0) || (is_capped && !(c.softcap > 0)) || c.window < 1 ||
      !(c.rope_theta > 0) || !(c.eps >= 0)) {
    view.refuse("has numbers in its config that are no Gemma 2's", kOwnConfig);
  }
  return c;
}

}  // namespace

std::vector<bool> every_second(int64_t layers) {
  std::vector<bool> result;
  for (int64_t i = 0; i < layers; ++i) result.push_back(i % 2 == 0);
  return result;
}

std::optional<Detection> detect_gemma2(const TensorIndex& checkpoint) {
  for (const GemmaSpelling& spelling : kGemmaSpellings) {
    const std::string stem = std::string(spelling.prefix) + spelling.stem;
    const auto has = [&](const char* weight) {
      return checkpoint.contains(stem + spelled(spelling.name, weight));
    };
    // Gemma 3 has norms of queries and keys.
    if (!has(kMarker) || has("layers.0.self_attn.q_norm.weight")) continue;
    const PartView view(checkpoint, stem, "text encoder");
    return atelier::detection_of("text_encoder", spelling.name, read_config(view, spelling.name),
                                 spelling.prefix);
  }
  return std::nullopt;
}

atelier::WeightMap gemma2_map(const Detection& part) {
  std::string stem;
  for (const GemmaSpelling& spelling : kGemmaSpellings) {
    if (part.spelling == spelling.name) stem = spelling.stem;
  }
  const auto from = [&](const std::string& weight) {
    return stem + spelled(part.spelling, weight);
  };
  const std::string last = "layers." + std::to_string(part.integer("layers") - 1) + ".*";
  atelier::WeightMap map = {
      {from(last)},    {from("norm.weight")}, {"lm_head.weight"},
      {"logit_scale"}, {"spiece_model"},      {from("embed_tokens.weight"), "embed_tokens.weight"}};
  const auto add = [&](std::span<const std::string_view> weights) {
    for (const std::string_view weight : weights) {
      const std::string name = "layers.{}." + std::string(weight);
      map.push_back({from(name), name});
    }
  };
  add(kLayerWeights);
  if (atelier::config_of<Gemma2Config>(part).attention_bias) add(kLayerBiases);
  return map;
}

std::unique_ptr<atelier::nn::Module> make_gemma2(const Detection& part) {
  const auto c = atelier::config_of<Gemma2Config>(part);
  return std::make_unique<LanguageModel>(
      LanguageModelConfig{.layers = c.layers,
                          .width = c.width,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .mlp_width = c.mlp_width,
                          .vocabulary = c.vocabulary,
                          .qkv_bias = c.attention_bias,
                          .head_norms = false,
                          .window = c.window,
                          .windowed = c.windowed,
                          .rope_theta = c.rope_theta,
                          .eps = c.eps,
                          .states = {-2},
                          .norms_add_one = true,
                          .has_outer_norms = true,
                          .has_gelu_gate = true,
                          .scales_embeddings = true,
                          .out_bias = c.attention_bias,
                          .query_scalar = c.query_scalar,
                          .softcap = c.softcap,
                          .norms_hold_one = part.spelling == kLlamaCpp});
}

std::vector<int64_t> prompt_ids(const atelier::text::Tokenizer& tokenizer, std::string_view text) {
  const std::optional<int64_t> bos = tokenizer.id("<bos>");
  if (!bos) {
    throw Error(ErrorCode::kInvalidArgument, "the tokenizer has no token <bos>",
                "pass the tokenizer that is published with the model");
  }
  std::vector<int64_t> ids = tokenizer.encode(text);
  ids.insert(ids.begin(), *bos);
  return ids;
}

}  // namespace lumina2
