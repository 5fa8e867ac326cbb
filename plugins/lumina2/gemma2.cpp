// Shape letters: N packed rows, D width, H heads, K heads of keys, d head width.
#include "gemma2.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace lumina2 {

using atelier::Detection;
using atelier::Error;
using atelier::ErrorCode;
using atelier::Segments;
using atelier::TensorIndex;
using atelier::Tensors;
using atelier::nn::Linear;
using atelier::nn::Module;
namespace ops = atelier::ops;

namespace {

// Where the names of a file begin, and what stands before those of the language model behind it.
struct Spelling {
  const char* prefix;
  const char* stem;
  const char* name;
};
constexpr Spelling kSpellings[] = {
    {"", "", "transformers"},
    {"text_encoder.", "", "transformers"},
    {"", "model.", "causal_lm"},
    {"text_encoder.", "model.", "causal_lm"},
    {"text_encoders.gemma2_2b.", "transformer.model.", "bundle"},
};
constexpr const char* kMarker = "layers.0.pre_feedforward_layernorm.weight";

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

[[noreturn]] void contradicts(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, "the text encoder " + message,
              "put the checkpoint's own config.json beside it");
}

// `total` in parts of `unit`.
int64_t parts_of(int64_t total, int64_t unit, const char* what) {
  if (unit < 1 || total < 1 || total % unit != 0) {
    contradicts("has " + std::to_string(total) + " channels of " + what + ", no multiple of " +
                std::to_string(unit));
  }
  return total / unit;
}

Gemma2Config read_config(const TensorIndex& index, const std::string& stem) {
  const auto integer = [&](const char* key, int64_t otherwise) {
    return index.config_integer(key).value_or(otherwise);
  };
  const auto real = [&](const char* key, double otherwise) {
    return index.config_real(key).value_or(otherwise);
  };
  const std::string layer = stem + "layers.0.";
  Gemma2Config c;
  c.layers =
      integer("num_hidden_layers", index.block_count(stem + "layers.{}.self_attn.q_proj.weight"));
  c.vocabulary = index.dim(stem + "embed_tokens.weight", 0);
  c.width = index.dim(stem + "embed_tokens.weight", 1);
  c.mlp_width = index.dim(layer + "mlp.gate_proj.weight", 0);
  c.head_dim = integer("head_dim", c.head_dim);
  c.heads = parts_of(index.dim(layer + "self_attn.q_proj.weight", 0), c.head_dim, "queries");
  c.kv_heads = parts_of(index.dim(layer + "self_attn.k_proj.weight", 0), c.head_dim, "keys");
  const int64_t heads = integer("num_attention_heads", c.heads),
                kv_heads = integer("num_key_value_heads", c.kv_heads);
  if (heads != c.heads || kv_heads != c.kv_heads || c.heads % c.kv_heads != 0 ||
      c.head_dim % 2 != 0 || c.layers < 2) {
    contradicts("has " + std::to_string(c.layers) + " layers with " + std::to_string(c.heads) +
                " heads of " + std::to_string(c.head_dim) + " and keys for " +
                std::to_string(c.kv_heads) + ", config.json says " + std::to_string(heads) +
                " and " + std::to_string(kv_heads));
  }
  c.query_scalar = real("query_pre_attn_scalar", c.query_scalar);
  c.softcap = real("attn_logit_softcapping", c.softcap);
  c.window = integer("sliding_window", c.window);
  c.rope_theta = real("rope_theta", real("rope_parameters.rope_theta", c.rope_theta));
  c.eps = real("rms_norm_eps", c.eps);
  if (!(c.query_scalar > 0) || !(c.softcap >= 0) || c.window < 1 || !(c.rope_theta > 0)) {
    contradicts("has numbers in its config.json that are no Gemma 2's");
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

std::optional<Detection> detect_gemma2(const TensorIndex& checkpoint) {
  for (const Spelling& spelling : kSpellings) {
    const std::string stem = std::string(spelling.prefix) + spelling.stem;
    if (!checkpoint.contains(stem + kMarker)) continue;
    // Gemma 3 has norms of queries and keys.
    if (checkpoint.contains(stem + "layers.0.self_attn.q_norm.weight")) continue;
    Detection part = to_detection(read_config(checkpoint, stem));
    part.prefix = spelling.prefix;
    part.spelling = spelling.name;
    return part;
  }
  return std::nullopt;
}

Gemma2Config gemma2_config(const Detection& part) {
  return {.layers = part.integer("layers"),
          .width = part.integer("width"),
          .heads = part.integer("heads"),
          .kv_heads = part.integer("kv_heads"),
          .head_dim = part.integer("head_dim"),
          .mlp_width = part.integer("mlp_width"),
          .vocabulary = part.integer("vocabulary"),
          .query_scalar = part.real("query_scalar"),
          .softcap = part.real("softcap"),
          .window = part.integer("window"),
          .rope_theta = part.real("rope_theta"),
          .eps = part.real("eps")};
}

Detection to_detection(const Gemma2Config& c) {
  return {.component = "text_encoder",
          .variant = "",
          .prefix = "",
          .spelling = "transformers",
          .config = {{"layers", c.layers},
                     {"width", c.width},
                     {"heads", c.heads},
                     {"kv_heads", c.kv_heads},
                     {"head_dim", c.head_dim},
                     {"mlp_width", c.mlp_width},
                     {"vocabulary", c.vocabulary},
                     {"query_scalar", c.query_scalar},
                     {"softcap", c.softcap},
                     {"window", c.window},
                     {"rope_theta", c.rope_theta},
                     {"eps", c.eps}}};
}

atelier::WeightMap gemma2_map(const Detection& part) {
  std::string stem;
  for (const Spelling& spelling : kSpellings) {
    if (part.spelling == spelling.name) stem = spelling.stem;
  }
  const std::string last = "layers." + std::to_string(part.integer("layers") - 1) + ".*";
  atelier::WeightMap map = {
      {stem + last},      {stem + "norm.weight"},
      {"lm_head.weight"}, {"logit_scale"},
      {"spiece_model"},   {stem + "embed_tokens.weight", "embed_tokens.weight"}};
  for (const std::string_view weight : kLayerWeights) {
    const std::string name = "layers.{}." + std::string(weight);
    map.push_back({stem + name, name});
  }
  return map;
}

std::vector<std::string> gemma2_spellings() {
  return {"transformers", "causal_lm", "bundle"};
}

// Inputs: rows [N, D], cosines and sines [N, d / 2], offsets of the samples. Outputs: rows.
class Gemma2Layer final : public atelier::Block {
 public:
  Gemma2Layer(Module* parent, int64_t number, const Gemma2Config& c)
      : Block(parent, "layers." + std::to_string(number)),
        options_{.causal = true,
                 .scale = 1.0 / std::sqrt(c.query_scalar),
                 .softcap = c.softcap,
                 .window = number % 2 == 0 ? c.window : 0},
        head_dim_(c.head_dim),
        input_norm_(this, "input_layernorm", c),
        q_(this, "self_attn.q_proj", c.width, c.heads * c.head_dim, /*bias=*/false),
        k_(this, "self_attn.k_proj", c.width, c.kv_heads * c.head_dim, /*bias=*/false),
        v_(this, "self_attn.v_proj", c.width, c.kv_heads * c.head_dim, /*bias=*/false),
        o_(this, "self_attn.o_proj", c.heads * c.head_dim, c.width, /*bias=*/false),
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
    : Module(nullptr, "text_encoder"),
      config_(c),
      embed_tokens_(this, "embed_tokens", c.vocabulary, c.width) {
  for (int64_t i = 0; i + 1 < c.layers; ++i) {
    layers_.push_back(std::make_unique<Gemma2Layer>(this, i, c));
  }
}

Gemma2::~Gemma2() = default;

std::vector<atelier::Block*> Gemma2::blocks() {
  std::vector<atelier::Block*> result;
  for (const auto& layer : layers_) result.push_back(layer.get());
  return result;
}

at::Tensor Gemma2::forward(const at::Tensor& ids_N, const Segments& rows,
                           atelier::BlockRunner& runner) {
  at::Tensor x = embed_tokens_.forward(ids_N);
  // The published model rounds this factor to the weights' dtype.
  const double factor = std::sqrt(static_cast<double>(config_.width));
  x = x * at::full({}, factor, at::TensorOptions(x.scalar_type())).item<double>();

  std::vector<at::Tensor> positions;
  for (int64_t s = 0; s < rows.count(); ++s) {
    positions.push_back(at::arange(rows.length(s), at::kFloat));
  }
  const at::Tensor exponent =
      at::arange(0, config_.head_dim, 2, at::kFloat) / static_cast<double>(config_.head_dim);
  const at::Tensor angle =
      at::outer(at::cat(positions), at::reciprocal(at::pow(config_.rope_theta, exponent)));
  const at::Tensor cos = at::cos(angle).to(x.device()), sin = at::sin(angle).to(x.device());

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
  if (std::ssize(ids) > kMaxPromptTokens) {
    throw Error(ErrorCode::kInvalidArgument,
                "prompt: " + std::to_string(ids.size()) +
                    " tokens with the system prompt, at most " + std::to_string(kMaxPromptTokens) +
                    " are encoded",
                "shorten the prompt");
  }
  return ids;
}

}  // namespace lumina2
