// Shape letters: N packed rows, D width, d head width.
#include "atelier/parts/language_model.h"

#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "atelier/nn/forward_all.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "hidden_states.h"

namespace atelier::parts {

using nn::Linear;
using nn::Module;
using Norm = LanguageModelNorm;

int64_t LanguageModelConfig::layers_run() const {
  return layers_of_states(*this);
}

Norm::LanguageModelNorm(Module* parent, std::string name, int64_t width,
                        const LanguageModelConfig& c)
    : Module(parent, std::move(name)),
      weight(declare("weight", {width}, {.keeps_float32 = c.norms_hold_one})),
      eps(c.eps),
      is_of_gemma(c.norms_add_one),
      added(c.norms_hold_one ? 0 : 1) {}
Norm::~LanguageModelNorm() = default;

at::Tensor Norm::forward(const at::Tensor& x) const {
  if (!is_of_gemma) return ops::rms_norm(x, weight->draw(), eps);
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return ops::rms_norm(x.to(wide), weight->draw().to(wide) + added, eps).to(x.scalar_type());
}

// Inputs: rows [N, D], offsets of the samples, cosines and sines [N, d / 2], and where layers with
// a window have waves of their own, those. Outputs: rows.
class LanguageModelLayer final : public Block {
 public:
  LanguageModelLayer(Module* parent, int64_t number, const LanguageModelConfig& c)
      : Block(parent, "layers." + std::to_string(number)),
        options_{.causal = true,
                 .scale = c.query_scalar > 0 ? 1.0 / std::sqrt(c.query_scalar) : 0,
                 .softcap = c.softcap,
                 .window = c.windowed[static_cast<size_t>(number)] ? c.window : 0},
        head_dim_(c.head_dim),
        waves_(options_.window > 0 && c.local_rope_theta > 0 ? 4 : 2),
        has_gelu_gate_(c.has_gelu_gate),
        input_norm_(this, "input_layernorm", c.width, c),
        q_(this, "self_attn.q_proj", c.width, c.heads * c.head_dim, c.qkv_bias),
        k_(this, "self_attn.k_proj", c.width, c.kv_heads * c.head_dim, c.qkv_bias),
        v_(this, "self_attn.v_proj", c.width, c.kv_heads * c.head_dim, c.qkv_bias),
        o_(this, "self_attn.o_proj", c.heads * c.head_dim, c.width, c.out_bias),
        post_norm_(this, "post_attention_layernorm", c.width, c),
        mlp_norm_(outer_norm("pre_feedforward_layernorm", c)),
        gate_(this, "mlp.gate_proj", c.width, c.mlp_width, /*bias=*/false),
        up_(this, "mlp.up_proj", c.width, c.mlp_width, /*bias=*/false),
        down_(this, "mlp.down_proj", c.mlp_width, c.width, /*bias=*/false),
        end_norm_(outer_norm("post_feedforward_layernorm", c)) {
    if (!c.head_norms) return;
    q_norm_ = std::make_unique<Norm>(this, "self_attn.q_norm", c.head_dim, c);
    k_norm_ = std::make_unique<Norm>(this, "self_attn.k_norm", c.head_dim, c);
  }

  std::string_view kind() const override {
    return options_.window ? "language_model.sliding" : "language_model";
  }

  Tensors forward(const Tensors& in) override {
    const at::Tensor attended = attend(input_norm_.forward(in[0]), in);
    if (!mlp_norm_) {
      const at::Tensor x = in[0] + attended;
      return {x + multiplied(post_norm_.forward(x))};
    }
    const at::Tensor x = in[0] + post_norm_.forward(attended);
    return {x + end_norm_->forward(multiplied(mlp_norm_->forward(x)))};
  }

 private:
  std::unique_ptr<Norm> outer_norm(const char* name, const LanguageModelConfig& c) {
    return c.has_outer_norms ? std::make_unique<Norm>(this, name, c.width, c) : nullptr;
  }

  at::Tensor attend(const at::Tensor& h, const Tensors& in) const {
    const Tensors qkv = nn::forward_all({&q_, &k_, &v_}, h);
    const auto heads = [&](const at::Tensor& t) { return t.view({t.size(0), -1, head_dim_}); };
    const auto turned = [&](const at::Tensor& t, const std::unique_ptr<Norm>& norm) {
      // The kernel's own norm multiplies by the weight as it is.
      const bool is_apart = norm && norm->is_of_gemma;
      return ops::norm_rope(is_apart ? norm->forward(heads(t)) : heads(t),
                            norm && !is_apart ? norm->weight->draw() : at::Tensor(), in[waves_],
                            in[waves_ + 1], ops::RopeLayout::kHalves, input_norm_.eps);
    };
    return o_.forward(ops::attention(turned(qkv[0], q_norm_), turned(qkv[1], k_norm_),
                                     heads(qkv[2]), Segments::from_tensor(in[1]), options_));
  }

  at::Tensor multiplied(const at::Tensor& h) const {
    const Tensors mlp = nn::forward_all({&gate_, &up_}, h);
    return down_.forward(has_gelu_gate_ ? ops::gelu_tanh(mlp[0]) * mlp[1]
                                        : ops::swiglu(mlp[0], mlp[1]));
  }

  ops::AttentionOptions options_;
  int64_t head_dim_;
  size_t waves_;  // of its heads among the inputs
  bool has_gelu_gate_;
  Norm input_norm_;
  Linear q_, k_, v_, o_;
  Norm post_norm_;                  // behind attention where there are outer norms
  std::unique_ptr<Norm> mlp_norm_;  // null: there are none
  Linear gate_, up_, down_;
  std::unique_ptr<Norm> end_norm_, q_norm_, k_norm_;
};

namespace {

// The waves of layers without a window, and of all where these have no base of their own.
nn::Waves waves_of(const LanguageModelConfig& c, const Segments& rows, at::Device device) {
  if (c.rope_factor == 1) return nn::row_waves(rows, c.head_dim, c.rope_theta, device);
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  at::Tensor frequency = nn::rope_angles(at::ones({1}, options), c.head_dim, c.rope_theta)[0];
  if (c.high_waves > 0) {
    const at::Tensor waves = frequency * (c.first_positions / (2 * std::numbers::pi));
    const at::Tensor kept = ((waves - c.low_waves) / (c.high_waves - c.low_waves)).clamp(0.0, 1.0);
    frequency = frequency * ((1 - kept) / c.rope_factor + kept);
  } else {
    frequency = frequency / c.rope_factor;
  }
  Tensors positions;
  for (int64_t s = 0; s < rows.count(); ++s)
    positions.push_back(at::arange(rows.length(s), options));
  const at::Tensor angle = at::outer(at::cat(positions), frequency);
  return {at::cos(angle), at::sin(angle)};
}

}  // namespace

LanguageModel::LanguageModel(const LanguageModelConfig& c)
    : TextEncoder(nullptr, ""),
      config_(c),
      embed_tokens_(this, "embed_tokens", c.vocabulary, c.width) {
  const int64_t last = c.layers_run();
  for (int64_t i = 0; i < last; ++i)
    layers_.push_back(std::make_unique<LanguageModelLayer>(this, i, c));
  if (last == c.layers) norm_ = std::make_unique<Norm>(this, "norm", c.width, c);
}

LanguageModel::~LanguageModel() = default;

at::Tensor LanguageModel::embedded(const at::Tensor& ids_N) const {
  at::Tensor x = embed_tokens_.forward(ids_N);
  if (!config_.scales_embeddings) return x;
  // The published model rounds this factor to the weights' dtype.
  const double factor = std::sqrt(static_cast<double>(config_.width));
  return x * at::full({}, factor, at::TensorOptions(x.scalar_type())).item<double>();
}

at::Tensor LanguageModel::states_of(const at::Tensor& x_ND, const nn::Waves& waves,
                                    const nn::Waves& local, const Segments& rows,
                                    BlockRunner& runner) {
  Tensors inputs = {x_ND, rows.tensor(), waves.cos, waves.sin};
  if (local.cos.defined()) inputs.insert(inputs.end(), {local.cos, local.sin});
  const std::vector<int64_t> behind = layers_before_states(config_);
  Tensors states = hidden_states(layers_, inputs, behind, runner);
  for (size_t i = 0; norm_ && i < states.size(); ++i) {
    if (behind[i] == config_.layers) states[i] = norm_->forward(states[i]);
  }
  return side_by_side(states);
}

at::Tensor LanguageModel::forward(const at::Tensor& ids_N, const Segments& rows,
                                  BlockRunner& runner) {
  const at::Tensor x = embedded(ids_N);
  nn::Waves local;
  if (config_.local_rope_theta > 0)
    local = nn::row_waves(rows, config_.head_dim, config_.local_rope_theta, x.device());
  return states_of(x, waves_of(config_, rows, x.device()), local, rows, runner);
}

}  // namespace atelier::parts
