// How files hold language models: names, shapes, config.
#include <algorithm>

#include "atelier/part_view.h"
#include "atelier/parts/language_model.h"

namespace atelier::parts {
namespace {

// What stands before the names of a spelling's tensors.
std::string stem_of(std::string_view spelling) {
  return spelling == "causal_lm" ? "model." : "";
}

// The model_type that a checkpoint's tensors have; Mistral's are Llama's, and its config tells.
// Empty: another architecture's.
std::string model_type_of(const PartView& view) {
  const auto has = [&](const char* name) { return view.contains(std::string("layers.0.") + name); };
  // Gemma has further norms, Cohere and others lack the second one.
  if (has("pre_feedforward_layernorm.weight") || !has("post_attention_layernorm.weight") ||
      !has("mlp.gate_proj.weight"))
    return "";
  if (has("self_attn.q_norm.weight")) return "qwen3";
  if (has("self_attn.q_proj.bias")) return "qwen2";
  const auto said = view.index().config().find("model_type");
  const bool is_mistral =
      said != view.index().config().end() && said->second == ConfigValue(std::string("mistral"));
  return is_mistral ? "mistral" : "llama";
}

// Layers as published. A file that was saved here lacks what is not run: the last norm, and the
// layers behind the last state.
int64_t published_layers(const PartView& view, const LanguageModelUse& use) {
  const int64_t there = view.block_count("layers.{}.self_attn.q_proj.weight");
  // Without the norm the last layer is not run, nor are those behind all states that count from
  // the end.
  int64_t unused = INT64_MAX;
  for (const int64_t state : use.states) {
    if (state < 0) unused = std::min(unused, -1 - state);
  }
  if (unused == INT64_MAX || unused == 0) unused = 1;
  const int64_t whole = view.contains("norm.weight") ? there : there + unused;
  LanguageModelConfig c{.layers = view.index().config_integer("num_hidden_layers").value_or(whole),
                        .states = {use.states.begin(), use.states.end()}};
  if (there > c.layers || there < c.layers_run())
    view.refuse("has " + std::to_string(there) + " layers, num_hidden_layers is " +
                    std::to_string(c.layers) + " and " + std::to_string(c.layers_run()) +
                    " are run",
                kOwnConfig);
  return c.layers;
}

// Layers of Qwen have windows where a flag says so, from one on; those of Mistral have them
// everywhere, and Llama knows none. Numbers are those of a missing field.
void read_windows(const PartView& view, const std::string& model_type, LanguageModelConfig& c) {
  const TensorIndex& index = view.index();
  const bool is_mistral = model_type == "mistral", is_qwen = model_type.starts_with("qwen");
  const bool is_used =
      (is_mistral || (is_qwen && index.config_flag("use_sliding_window") == true)) &&
      !index.has_null("sliding_window");
  c.window = is_used ? index.config_integer("sliding_window").value_or(4096) : 0;
  int64_t first = is_used ? 0 : c.layers;
  if (is_used && is_qwen) first = index.config_integer("max_window_layers").value_or(28);
  for (int64_t i = 0; i < c.layers; ++i) c.windowed.push_back(i >= first);
  if (const auto listed = view.layer_windows("layer_types", c.layers)) c.windowed = *listed;
  const bool any = std::ranges::find(c.windowed, true) != c.windowed.end();
  if (first < 0 || c.window < 0 || (any && c.window == 0))
    view.refuse("has " + std::to_string(c.layers) +
                    " layers, which layer_types or sliding_window in its config does not fit",
                kOwnConfig);
}

LanguageModelConfig read_config(const PartView& view, const LanguageModelUse& use) {
  const TensorIndex& index = view.index();
  const std::string queries = "layers.0.self_attn.q_proj.weight",
                    keys = "layers.0.self_attn.k_proj.weight",
                    norm = "layers.0.self_attn.q_norm.weight";
  LanguageModelConfig c{};
  c.layers = published_layers(view, use);
  c.vocabulary = view.dim("embed_tokens.weight", 0);
  c.width = view.dim("embed_tokens.weight", 1);
  c.mlp_width = view.dim("layers.0.mlp.gate_proj.weight", 0);
  c.qkv_bias = view.contains("layers.0.self_attn.q_proj.bias");
  c.head_norms = view.contains(norm);
  view.require_config(c.width == use.published_width && c.mlp_width == use.published_mlp_width,
                      "head_dim, num_attention_heads, rope_theta and rms_norm_eps");
  if (c.head_norms) {
    c.head_dim = view.dim(norm, 0);
  } else if (const auto said = index.config_integer("head_dim")) {
    c.head_dim = *said;
  } else if (const auto heads = index.config_integer("num_attention_heads")) {
    c.head_dim = view.parts(queries, 0, *heads, kOwnConfig);
  } else {
    c.head_dim = 128;
  }
  c.heads = view.parts(queries, 0, c.head_dim, kOwnConfig);
  c.kv_heads = view.parts(keys, 0, c.head_dim, kOwnConfig);
  view.check_heads(c.heads, c.kv_heads, c.head_dim);
  read_windows(view, model_type_of(view), c);
  c.rope_theta = rope_theta(index).value_or(use.rope_theta);
  c.eps = index.config_real("rms_norm_eps").value_or(use.eps);
  if (!(c.rope_theta > 0) || !(c.eps >= 0))
    view.refuse("has rope_theta or rms_norm_eps below 0 in its config", kOwnConfig);
  c.states.assign(use.states.begin(), use.states.end());
  for (const int64_t state : c.states) {
    if (c.layers_before(state) < 0 || c.layers_before(state) > c.layers)
      view.refuse("has " + std::to_string(c.layers) + " layers, and state " +
                  std::to_string(state) + " is used");
  }
  return c;
}

}  // namespace

std::optional<Detection> detect_language_model(const TensorIndex& checkpoint,
                                               const LanguageModelUse& use) {
  const std::string own = std::string(use.component) + ".";
  for (const std::string& prefix : {std::string(), own}) {
    for (const char* spelling : kLanguageModelSpellings) {
      const std::string stem = prefix + stem_of(spelling);
      if (!checkpoint.contains(stem + "layers.0.self_attn.q_proj.weight") ||
          !checkpoint.contains(stem + "embed_tokens.weight"))
        continue;
      const PartView view(checkpoint, stem, "text encoder");
      if (std::ranges::find(use.model_types, model_type_of(view)) == use.model_types.end())
        continue;
      view.refuse_quantised();
      return detection_of(std::string(use.component), spelling, read_config(view, use), prefix);
    }
  }
  return std::nullopt;
}

Detection tiny_language_model(const LanguageModelUse& use) {
  constexpr int64_t kLayers = 3;
  LanguageModelConfig c = {.layers = kLayers,
                           .width = kTinyLanguageModelWidth,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 16,
                           .mlp_width = 48,
                           .vocabulary = 512,
                           .qkv_bias = use.model_types.front() == "qwen2",
                           .head_norms = use.model_types.front() == "qwen3",
                           .window = 0,
                           .windowed = std::vector<bool>(kLayers, false),
                           .rope_theta = use.rope_theta,
                           .eps = use.eps,
                           .states = {use.states.begin(), use.states.end()}};
  for (int64_t& state : c.states) state = std::clamp<int64_t>(state, -1 - kLayers, kLayers);
  return detection_of(std::string(use.component), "transformers", std::move(c));
}

ConfigFields language_model_fields(const Detection& part, const LanguageModelUse& use) {
  const auto c = config_of<LanguageModelConfig>(part);
  const std::vector<ConfigValue> kv_heads = c.kv_heads == c.heads
                                                ? std::vector<ConfigValue>{c.kv_heads, nullptr}
                                                : std::vector<ConfigValue>{c.kv_heads};
  std::vector<ConfigValue> types;
  for (const std::string_view type : use.model_types) types.emplace_back(std::string(type));
  ConfigFields fields;
  fields.of_transformers(std::move(types))
      .rope_of_transformers()
      .told("vocab_size", {c.vocabulary})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("num_key_value_heads", kv_heads)
      .told("attention_bias", {c.qkv_bias})
      .fixed("mlp_bias", {false})
      .fixed("hidden_act", {"silu", "swish"})
      .read({"num_hidden_layers", "rms_norm_eps"})
      .read({.name = "layer_types", .values = {nullptr}})
      .ignored({"pretraining_tp"});
  if (c.head_norms) {
    fields.told("head_dim", {c.head_dim}).told("num_attention_heads", {c.heads});
  } else {
    fields.read({"num_attention_heads"}).read({.name = "head_dim", .values = {nullptr}});
  }
  if (c.head_norms || c.qkv_bias) {
    fields.read({.name = "use_sliding_window", .values = {nullptr, false}})
        .read({.name = "sliding_window", .only_with = "use_sliding_window"})
        .read({.name = "max_window_layers", .only_with = "use_sliding_window"});
  } else {
    fields.read({.name = "sliding_window", .values = {nullptr}});
  }
  return fields;
}

WeightMap language_model_map(const Detection& part) {
  const auto c = config_of<LanguageModelConfig>(part);
  const std::string stem = stem_of(part.spelling);
  LanguageModel model(c);
  WeightMap map = named_weights(model, [&](const std::string& path) { return stem + path; });
  const int64_t last = c.layers_run();
  for (int64_t i = last; i < c.layers; ++i)
    map.push_back({.from = stem + "layers." + std::to_string(i) + ".*"});
  if (last < c.layers) map.push_back({.from = stem + "norm.weight"});
  map.push_back({.from = "lm_head.weight"});
  return map;
}

}  // namespace atelier::parts
