// Shape letters: N packed rows, D width, H heads, K heads of keys, d head width.
#include "gemma2.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/nn/waves.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"
#include "atelier/part_view.h"

namespace lumina2 {

using atelier::Detection;
using atelier::Error;
using atelier::ErrorCode;
using atelier::kOwnConfig;
using atelier::PartView;
using atelier::Segments;
using atelier::TensorIndex;
using atelier::Tensors;
using atelier::nn::Linear;
using atelier::nn::Module;
namespace ops = atelier::ops;

namespace {

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
};
constexpr const char* kMarker = "layers.0.pre_feedforward_layernorm.weight";

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

Gemma2Config read_config(const PartView& view) {
  const TensorIndex& index = view.index();
  const auto integer = [&](const char* key, int64_t otherwise) {
    return index.config_integer(key).value_or(otherwise);
  };
  const auto real = [&](const char* key, double otherwise) {
    return index.config_real(key).value_or(otherwise);
  };
  const std::string layer = "layers.0.";
  Gemma2Config c;
  const int64_t there = view.block_count("layers.{}.self_attn.q_proj.weight");
  c.layers = integer("num_hidden_layers", there);
  c.vocabulary = view.dim("embed_tokens.weight", 0);
  c.width = view.dim("embed_tokens.weight", 1);
  c.mlp_width = view.dim(layer + "mlp.gate_proj.weight", 0);
  const std::string queries = layer + "self_attn.q_proj.weight",
                    keys = layer + "self_attn.k_proj.weight";
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
  c.attention_bias = view.contains(layer + "self_attn.q_proj.bias");
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

// x / rms(x) * (1 + weight), in float32 to the end.
class Norm final : public Module {
 public:
  Norm(Module* parent, std::string name, const Gemma2Config& c)
      : Module(parent, std::move(name)), weight_(declare("weight", {c.width})), eps_(c.eps) {}
  ~Norm() override = default;

  at::Tensor forward(const at::Tensor& x) const {
    const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return ops::rms_norm(x.to(wide), weight_->draw().to(wide) + 1, eps_).to(x.scalar_type());
  }

 private:
  atelier::WeightPtr weight_;
  double eps_;
};

}  // namespace

std::vector<bool> every_second(int64_t layers) {
  std::vector<bool> result;
  for (int64_t i = 0; i < layers; ++i) result.push_back(i % 2 == 0);
  return result;
}

std::optional<Detection> detect_gemma2(const TensorIndex& checkpoint) {
  for (const GemmaSpelling& spelling : kGemmaSpellings) {
    const std::string stem = std::string(spelling.prefix) + spelling.stem;
    if (!checkpoint.contains(stem + kMarker)) continue;
    // Gemma 3 has norms of queries and keys.
    if (checkpoint.contains(stem + "layers.0.self_attn.q_norm.weight")) continue;
    const PartView view(checkpoint, stem, "text encoder");
    return atelier::detection_of("text_encoder", spelling.name, read_config(view), spelling.prefix);
  }
  return std::nullopt;
}

atelier::WeightMap gemma2_map(const Detection& part) {
  std::string stem;
  for (const GemmaSpelling& spelling : kGemmaSpellings) {
    if (part.spelling == spelling.name) stem = spelling.stem;
  }
  const std::string last = "layers." + std::to_string(part.integer("layers") - 1) + ".*";
  atelier::WeightMap map = {
      {stem + last},      {stem + "norm.weight"},
      {"lm_head.weight"}, {"logit_scale"},
      {"spiece_model"},   {stem + "embed_tokens.weight", "embed_tokens.weight"}};
  const auto add = [&](std::span<const std::string_view> weights) {
    for (const std::string_view weight : weights) {
      const std::string name = "layers.{}." + std::string(weight);
      map.push_back({stem + name, name});
    }
  };
  add(kLayerWeights);
  if (atelier::config_of<Gemma2Config>(part).attention_bias) add(kLayerBiases);
  return map;
}

// Inputs: rows [N, D], cosines and sines [N, d / 2], offsets of the samples. Outputs: rows.
class Gemma2Layer final : public atelier::Block {
 public:
  Gemma2Layer(Module* parent, int64_t number, const Gemma2Config& c)
      : Block(parent, "layers." + std::to_string(number)),
        options_{.causal = true,
                 .scale = 1.0 / std::sqrt(c.query_scalar),
                 .softcap = c.softcap,
                 .window = c.windowed[static_cast<size_t>(number)] ? c.window : 0},
        head_dim_(c.head_dim),
        input_norm_(this, "input_layernorm", c),
        q_(this, "self_attn.q_proj", c.width, c.heads * c.head_dim, c.attention_bias),
        k_(this, "self_attn.k_proj", c.width, c.kv_heads * c.head_dim, c.attention_bias),
        v_(this, "self_attn.v_proj", c.width, c.kv_heads * c.head_dim, c.attention_bias),
        o_(this, "self_attn.o_proj", c.heads * c.head_dim, c.width, c.attention_bias),
        attention_norm_(this, "post_attention_layernorm", c),
        mlp_norm_(this, "pre_feedforward_layernorm", c),
        gate_(this, "mlp.gate_proj", c.width, c.mlp_width, /*bias=*/false),
        up_(this, "mlp.up_proj", c.width, c.mlp_width, /*bias=*/false),
        down_(this, "mlp.down_proj", c.mlp_width, c.width, /*bias=*/false),
        post_norm_(this, "post_feedforward_layernorm", c) {}

  std::string_view kind() const override { return options_.window ? "gemma2.sliding" : "gemma2"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor x = in[0] + attention_norm_.forward(attend(input_norm_.forward(in[0]), in));
    const at::Tensor h = mlp_norm_.forward(x);
    const at::Tensor y = down_.forward(ops::gelu_tanh(gate_.forward(h)) * up_.forward(h));
    return {x + post_norm_.forward(y)};
  }

 private:
  at::Tensor attend(const at::Tensor& h, const Tensors& in) const {
    const auto heads = [&](const Linear& layer) {
      const at::Tensor y = layer.forward(h);
      return y.view({y.size(0), y.size(1) / head_dim_, head_dim_});
    };
    const auto turn = [&](const at::Tensor& y) {
      return ops::norm_rope(y, at::Tensor(), in[1], in[2], ops::RopeLayout::kHalves);
    };
    const at::Tensor q = turn(heads(q_)), k = turn(heads(k_));
    return o_.forward(ops::attention(q, k, heads(v_), Segments::from_tensor(in[3]), options_));
  }

  ops::AttentionOptions options_;
  int64_t head_dim_;
  Norm input_norm_;
  Linear q_, k_, v_, o_;
  Norm attention_norm_, mlp_norm_;
  Linear gate_, up_, down_;
  Norm post_norm_;
};

Gemma2::Gemma2(const Gemma2Config& c)
    : TextEncoder(nullptr, "text_encoder"),
      config_(c),
      embed_tokens_(this, "embed_tokens", c.vocabulary, c.width) {
  for (int64_t i = 0; i + 1 < c.layers; ++i) {
    layers_.push_back(std::make_unique<Gemma2Layer>(this, i, c));
  }
}

Gemma2::~Gemma2() = default;

at::Tensor Gemma2::forward(const at::Tensor& ids_N, const Segments& rows,
                           atelier::BlockRunner& runner) {
  at::Tensor x = embed_tokens_.forward(ids_N);
  // The published model rounds this factor to the weights' dtype.
  const double factor = std::sqrt(static_cast<double>(config_.width));
  x = x * at::full({}, factor, at::TensorOptions(x.scalar_type())).item<double>();
  const auto [cos, sin] =
      atelier::nn::row_waves(rows, config_.head_dim, config_.rope_theta, x.device());
  for (const auto& layer : layers_) x = runner.run(*layer, {x, cos, sin, rows.tensor()})[0];
  return x;
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
