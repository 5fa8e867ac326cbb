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

constexpr Renamed kLlamaCppNames[] = {
    {"layers.", "blk."},
    {"embed_tokens.", "token_embd."},
    {"norm.", "output_norm."},
    {"input_layernorm.", "attn_norm."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.o_proj.", "attn_output."},
    {"self_attn.q_norm.", "attn_q_norm."},
    {"self_attn.k_norm.", "attn_k_norm."},
    {"pre_feedforward_layernorm.", "ffn_norm."},
    {"post_feedforward_layernorm.", "post_ffw_norm."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
};
// The norm behind attention, which stands in front of the MLP where there are no outer norms.
constexpr Renamed kBehindAttention[] = {{"post_attention_layernorm.", "post_attention_norm."}},
                  kBeforeMlp[] = {{"post_attention_layernorm.", "ffn_norm."}};

constexpr std::string_view kGemma2 = "gemma2", kGemma3 = "gemma3_text";
constexpr const char* kLlamaCpp = "llama_cpp";
// What llama.cpp writes as it is; it turns heads of Llama and Mistral, and adds 1 to Gemma's norms.
constexpr std::string_view kOfLlamaCpp[] = {"qwen2", "qwen3"};

// What a file of that spelling calls a weight behind its stem.
std::string spelled(std::string_view spelling, const std::string& weight) {
  return spelling == kLlamaCpp ? llama_cpp_name(weight, /*has_outer_norms=*/false) : weight;
}

// A file whose tensors have the model's names, whatever the file calls them.
class ModelView : public PartView {
 public:
  ModelView(const TensorIndex& index, const std::string& prefix, std::string_view spelling)
      : PartView(index, prefix + stem_of(spelling), "text encoder"), spelling_(spelling) {}

  bool contains(const std::string& weight) const { return PartView::contains(of(weight)); }
  int64_t block_count(const std::string& weight) const { return PartView::block_count(of(weight)); }
  int64_t dim(const std::string& weight, size_t axis) const {
    return PartView::dim(of(weight), axis);
  }
  int64_t parts(const std::string& weight, size_t axis, int64_t unit) const {
    return PartView::parts(of(weight), axis, unit, kOwnConfig);
  }

 private:
  std::string of(const std::string& weight) const { return spelled(spelling_, weight); }

  std::string_view spelling_;
};

bool is_gemma(std::string_view model_type) {
  return model_type.starts_with("gemma");
}

// The model_type that a checkpoint's tensors have; Mistral's are Llama's, and its config tells.
// Empty: another architecture's.
std::string model_type_of(const ModelView& view) {
  const auto has = [&](const char* name) { return view.contains(std::string("layers.0.") + name); };
  // Cohere and others lack the second norm.
  if (!has("post_attention_layernorm.weight") || !has("mlp.gate_proj.weight")) return "";
  const bool has_head_norms = has("self_attn.q_norm.weight");
  // The first of the two has llama.cpp's name of the norm in front of any MLP.
  if (has("pre_feedforward_layernorm.weight") && has("post_feedforward_layernorm.weight"))
    return std::string(has_head_norms ? kGemma3 : kGemma2);
  if (has_head_norms) return "qwen3";
  if (has("self_attn.q_proj.bias") && !has("self_attn.o_proj.bias")) return "qwen2";
  const auto said = view.index().config().find("model_type");
  const bool is_mistral =
      said != view.index().config().end() && said->second == ConfigValue(std::string("mistral"));
  return is_mistral ? "mistral" : "llama";
}

// Layers as published. A file that was saved here lacks what is not run: the last norm, and the
// layers behind the last state.
int64_t published_layers(const ModelView& view, const LanguageModelUse& use) {
  const int64_t there = view.block_count("layers.{}.self_attn.q_proj.weight");
  // Without the norm the last layer is not run, nor are those behind all states that count from
  // the end.
  int64_t unused = INT64_MAX;
  for (const int64_t state : use.states) {
    if (state < 0) unused = std::min(unused, -1 - state);
  }
  if (unused == INT64_MAX || unused == 0) unused = 1;
  const int64_t whole = view.contains("norm.weight") ? there : there + unused;
  LanguageModelConfig c{};
  c.layers = view.index().config_integer("num_hidden_layers").value_or(whole);
  c.states.assign(use.states.begin(), use.states.end());
  if (there > c.layers || there < c.layers_run())
    view.refuse("has " + std::to_string(there) + " layers, num_hidden_layers is " +
                    std::to_string(c.layers) + " and " + std::to_string(c.layers_run()) +
                    " are run",
                kOwnConfig);
  return c.layers;
}

// Layers of Qwen have windows where a flag says so, from one on; those of Mistral have them
// everywhere, every second one of Gemma 2, all of Gemma 3 but every sixth, and Llama knows none.
// Numbers are those of a missing field.
void read_windows(const ModelView& view, const std::string& model_type, LanguageModelConfig& c) {
  const TensorIndex& index = view.index();
  const bool is_qwen = model_type.starts_with("qwen");
  const bool is_used = (model_type == "mistral" || is_gemma(model_type) ||
                        (is_qwen && index.config_flag("use_sliding_window") == true)) &&
                       !index.has_null("sliding_window");
  c.window = is_used ? index.config_integer("sliding_window").value_or(4096) : 0;
  int64_t first = is_used ? 0 : c.layers, whole = INT64_MAX;  // layers that see all come so often
  if (is_used && is_qwen) first = index.config_integer("max_window_layers").value_or(28);
  if (model_type == kGemma2) whole = 2;
  if (model_type == kGemma3) whole = index.config_integer("sliding_window_pattern").value_or(6);
  for (int64_t i = 0; i < c.layers; ++i)
    c.windowed.push_back(i >= first && (i + 1) % std::max<int64_t>(whole, 1) != 0);
  if (const auto listed = view.layer_windows("layer_types", c.layers)) c.windowed = *listed;
  const bool any = std::ranges::find(c.windowed, true) != c.windowed.end();
  if (first < 0 || whole < 1 || c.window < 0 || (any && c.window == 0))
    view.refuse("has " + std::to_string(c.layers) +
                    " layers, which layer_types or sliding_window in its config does not fit",
                kOwnConfig);
}

// Where a config says how rotation is stretched: in front of which fields.
std::string stretch_home(const TensorIndex& index) {
  if (has_fields(index.config(), "rope_scaling.")) return "rope_scaling.";
  const std::string full = "rope_parameters.full_attention.";
  return has_fields(index.config(), full) ? full : "rope_parameters.";
}

std::string text_at(const TensorIndex& index, const std::string& field) {
  const auto found = index.config().find(field);
  const auto* text =
      found == index.config().end() ? nullptr : std::get_if<std::string>(&found->second);
  return text ? *text : "";
}

// Kinds that are not computed are refused by the table of fields.
void read_stretch(const ModelView& view, LanguageModelConfig& c) {
  const TensorIndex& index = view.index();
  const std::string home = stretch_home(index);
  std::string kind = text_at(index, home + "rope_type");
  if (kind.empty()) kind = text_at(index, home + "type");
  if (kind != "linear" && kind != "llama3") return;
  const auto number = [&](const char* name) {
    const auto said = index.config_real(home + name);
    if (!said)
      view.refuse("has rotation of type " + kind + " without " + home + name + " in its config",
                  kOwnConfig);
    return *said;
  };
  c.rope_factor = number("factor");
  if (kind == "llama3") {
    c.low_waves = number("low_freq_factor");
    c.high_waves = number("high_freq_factor");
    c.first_positions = number("original_max_position_embeddings");
  }
  const bool is_plain = kind == "linear";
  if (!(c.rope_factor >= 1) ||
      (!is_plain && !(c.low_waves > 0 && c.high_waves > c.low_waves && c.first_positions > 0)))
    view.refuse("has numbers in its config that stretch no rotation: " + home + "factor and others",
                kOwnConfig);
}

void read_rotation(const ModelView& view, const std::string& model_type,
                   const LanguageModelUse& use, LanguageModelConfig& c) {
  const TensorIndex& index = view.index();
  c.rope_theta = rope_theta(index).value_or(model_type == kGemma3 ? 1e6 : use.rope_theta);
  if (model_type == kGemma3) {
    const std::string full = "rope_parameters.full_attention.rope_theta",
                      sliding = "rope_parameters.sliding_attention.rope_theta";
    c.rope_theta = index.config_real(full).value_or(c.rope_theta);
    c.local_rope_theta = index.config_real(sliding).value_or(
        index.config_real("rope_local_base_freq").value_or(1e4));
  }
  read_stretch(view, c);
  if (!(c.rope_theta > 0) || !(c.local_rope_theta >= 0))
    view.refuse("has rope_theta below 0 in its config", kOwnConfig);
}

// What Gemma alone has. Numbers are those of a missing field.
void read_gemma(const ModelView& view, const std::string& model_type, LanguageModelConfig& c) {
  const TensorIndex& index = view.index();
  c.norms_add_one = c.has_outer_norms = c.has_gelu_gate = c.scales_embeddings = true;
  c.query_scalar = index.config_real("query_pre_attn_scalar").value_or(256);
  const char* cap = "attn_logit_softcapping";
  const bool is_capped = !index.has_null(cap) && (model_type == kGemma2 || index.config_real(cap));
  c.softcap = is_capped ? index.config_real(cap).value_or(50) : 0;
  if (!(c.query_scalar > 0) || (is_capped && !(c.softcap > 0)))
    view.refuse("has query_pre_attn_scalar or attn_logit_softcapping in its config that are not " +
                    std::string("above 0"),
                kOwnConfig);
}

// Heads as tensors tell them, else the config, else as published.
void read_heads(const ModelView& view, const std::string& model_type, LanguageModelConfig& c) {
  const TensorIndex& index = view.index();
  const std::string queries = "layers.0.self_attn.q_proj.weight",
                    keys = "layers.0.self_attn.k_proj.weight",
                    norm = "layers.0.self_attn.q_norm.weight";
  if (c.head_norms) {
    c.head_dim = view.dim(norm, 0);
  } else if (const auto said = index.config_integer("head_dim")) {
    c.head_dim = *said;
  } else if (is_gemma(model_type)) {
    c.head_dim = 256;
  } else if (const auto heads = index.config_integer("num_attention_heads")) {
    c.head_dim = view.parts(queries, 0, *heads);
  } else {
    c.head_dim = 128;
  }
  c.heads = view.parts(queries, 0, c.head_dim);
  c.kv_heads = view.parts(keys, 0, c.head_dim);
  view.check_heads(c.heads, c.kv_heads, c.head_dim);
}

LanguageModelConfig read_config(const ModelView& view, const LanguageModelUse& use) {
  const TensorIndex& index = view.index();
  const std::string model_type = model_type_of(view);
  LanguageModelConfig c{};
  c.layers = published_layers(view, use);
  c.vocabulary = view.dim("embed_tokens.weight", 0);
  c.width = view.dim("embed_tokens.weight", 1);
  c.mlp_width = view.dim("layers.0.mlp.gate_proj.weight", 0);
  c.qkv_bias = view.contains("layers.0.self_attn.q_proj.bias");
  c.out_bias = view.contains("layers.0.self_attn.o_proj.bias");
  c.head_norms = view.contains("layers.0.self_attn.q_norm.weight");
  const bool is_published =
      c.width == use.published_width && c.mlp_width == use.published_mlp_width;
  view.require_config(is_published && model_type != kGemma3,
                      "head_dim, num_attention_heads, rope_theta and rms_norm_eps");
  read_heads(view, model_type, c);
  read_windows(view, model_type, c);
  read_rotation(view, model_type, use, c);
  if (is_gemma(model_type)) read_gemma(view, model_type, c);
  c.eps = index.config_real("rms_norm_eps").value_or(use.eps);
  if (!(c.eps >= 0)) view.refuse("has rms_norm_eps below 0 in its config", kOwnConfig);
  c.states.assign(use.states.begin(), use.states.end());
  for (const int64_t state : c.states) {
    if (c.layers_before(state) < 0 || c.layers_before(state) > c.layers)
      view.refuse("has " + std::to_string(c.layers) + " layers, and state " +
                  std::to_string(state) + " is used");
  }
  return c;
}

}  // namespace

std::string llama_cpp_name(const std::string& path, bool has_outer_norms) {
  const std::span<const Renamed> norm = has_outer_norms ? kBehindAttention : kBeforeMlp;
  return renamed(renamed(path, kLlamaCppNames), norm);
}

std::optional<Detection> detect_language_model(const TensorIndex& checkpoint,
                                               const LanguageModelUse& use) {
  const auto is_in = [](std::span<const std::string_view> types, std::string_view type) {
    return std::ranges::find(types, type) != types.end();
  };
  const std::string own = std::string(use.component) + ".";
  for (const std::string& prefix : {std::string(), own}) {
    for (const char* spelling :
         {kLanguageModelSpellings[0], kLanguageModelSpellings[1], kLlamaCpp}) {
      const ModelView view(checkpoint, prefix, spelling);
      if (!view.contains("layers.0.self_attn.q_proj.weight") ||
          !view.contains("embed_tokens.weight"))
        continue;
      const std::string type = model_type_of(view);
      if (!is_in(use.model_types, type) || (spelling == kLlamaCpp && !is_in(kOfLlamaCpp, type)))
        continue;
      view.refuse_quantised();
      return brief_detection_of(std::string(use.component), spelling, read_config(view, use),
                                prefix);
    }
  }
  return std::nullopt;
}

Detection tiny_language_model(const LanguageModelUse& use) {
  constexpr int64_t kLayers = 3;
  const std::string_view type = use.model_types.front();
  const bool has_head_norms = type == "qwen3" || type == kGemma3;
  const bool has_windows = is_gemma(type) || type == "mistral";
  LanguageModelConfig c = {.layers = kLayers,
                           .width = kTinyLanguageModelWidth,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = has_head_norms    ? 16
                                       : type == kGemma2 ? 256
                                                         : 128,
                           .mlp_width = 48,
                           .vocabulary = 512,
                           .qkv_bias = type == "qwen2",
                           .head_norms = has_head_norms,
                           .window = has_windows ? 4096 : 0,
                           .windowed = std::vector<bool>(kLayers, has_windows),
                           .rope_theta = type == kGemma3 ? 1e6 : use.rope_theta,
                           .eps = use.eps,
                           .states = {use.states.begin(), use.states.end()}};
  if (is_gemma(type)) {
    c.norms_add_one = c.has_outer_norms = c.has_gelu_gate = c.scales_embeddings = true;
    c.query_scalar = 256;
  }
  if (type == kGemma2) c.windowed[1] = false, c.softcap = 50;
  if (type == kGemma3) c.local_rope_theta = 1e4;
  for (int64_t& state : c.states) state = std::clamp<int64_t>(state, -1 - kLayers, kLayers);
  return brief_detection_of(std::string(use.component), "transformers", std::move(c));
}

namespace {

// Rotation as configs say it, stretched or not; see ConfigFields::rope_of_transformers(), whose
// rows these go before.
void add_rotation(ConfigFields& fields, const LanguageModelConfig& c) {
  std::vector<ConfigValue> kinds = {"default", "mrope"};
  if (c.rope_factor != 1) kinds = {c.high_waves > 0 ? "llama3" : "linear"};
  std::vector<std::string> homes = {"rope_scaling.", "rope_parameters."};
  if (c.local_rope_theta > 0) homes.emplace_back("rope_parameters.full_attention.");
  for (const std::string& home : homes) {
    if (kinds.front() != ConfigValue("default")) {
      for (const char* name :
           {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
        fields.read({.name = home + name});
    }
    fields.fixed(home + "rope_type", kinds).fixed(home + "type", kinds);
  }
  if (c.local_rope_theta > 0) {
    fields.fixed("rope_parameters.sliding_attention.rope_type", {"default"})
        .read({"rope_parameters.sliding_attention.rope_theta",
               "rope_parameters.full_attention.rope_theta", "rope_local_base_freq"});
  }
  fields.rope_of_transformers();
}

void add_windows(ConfigFields& fields, const LanguageModelConfig& c) {
  fields.read({.name = "layer_types", .values = {nullptr}});
  if (c.has_outer_norms) {
    fields.read({"sliding_window", "sliding_window_pattern", "_sliding_window_pattern"});
  } else if (c.head_norms || c.qkv_bias) {
    fields.read({.name = "use_sliding_window", .values = {nullptr, false}})
        .read({.name = "sliding_window", .only_with = "use_sliding_window"})
        .read({.name = "max_window_layers", .only_with = "use_sliding_window"});
  } else {
    fields.read({.name = "sliding_window", .values = {nullptr}});
  }
}

}  // namespace

ConfigFields language_model_fields(const Detection& part, const LanguageModelUse& use) {
  const auto c = whole_config_of<LanguageModelConfig>(part);
  const bool is_of_gemma = c.has_outer_norms;
  const std::vector<ConfigValue> kv_heads = c.kv_heads == c.heads
                                                ? std::vector<ConfigValue>{c.kv_heads, nullptr}
                                                : std::vector<ConfigValue>{c.kv_heads};
  std::vector<ConfigValue> types;
  for (const std::string_view type : use.model_types) types.emplace_back(std::string(type));
  ConfigFields fields;
  fields.of_transformers(std::move(types))
      .told("vocab_size", {c.vocabulary})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("num_key_value_heads", kv_heads)
      .told("attention_bias", {c.qkv_bias})
      .read({"num_hidden_layers", "rms_norm_eps"});
  add_rotation(fields, c);
  add_windows(fields, c);
  if (is_of_gemma) {
    fields.fixed("hidden_activation", {"gelu_pytorch_tanh"})
        .fixed("use_bidirectional_attention", {nullptr, false})
        .read({"query_pre_attn_scalar", "attn_logit_softcapping"})
        // Fields of the head, and earlier names that nothing reads any more.
        .ignored({"final_logit_softcapping", "hidden_act", "sliding_window_size"});
  } else {
    fields.fixed("mlp_bias", {false})
        .fixed("hidden_act", {"silu", "swish"})
        .ignored({"pretraining_tp"});
  }
  if (c.head_norms)
    return fields.told("head_dim", {c.head_dim}).told("num_attention_heads", {c.heads});
  return fields.read({"num_attention_heads"}).read({.name = "head_dim", .values = {nullptr}});
}

WeightMap language_model_map(const Detection& part) {
  const auto c = whole_config_of<LanguageModelConfig>(part);
  const std::string stem = stem_of(part.spelling);
  const auto from = [&](const std::string& weight) {
    return stem + spelled(part.spelling, weight);
  };
  LanguageModel model(c);
  WeightMap map = named_weights(model, from);
  const int64_t last = c.layers_run();
  for (int64_t i = last; i < c.layers; ++i)
    map.push_back({.from = from("layers." + std::to_string(i) + ".*")});
  if (last < c.layers) map.push_back({.from = from("norm.weight")});
  map.push_back({.from = part.spelling == kLlamaCpp ? "output.weight" : "lm_head.weight"});
  return map;
}

}  // namespace atelier::parts
