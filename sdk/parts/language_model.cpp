// Shape letters: N packed rows, D width, d head width.
#include "atelier/parts/language_model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/nn/forward_all.h"
#include "atelier/nn/waves.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace atelier::parts {

using nn::Linear;
using nn::RMSNorm;

int64_t LanguageModelConfig::layers_run() const {
  int64_t last = 0;
  for (const int64_t state : states) last = std::max(last, layers_before(state));
  return last;
}

// Inputs: rows [N, D], offsets of the samples, cosines and sines [N, d / 2]. Outputs: rows.
class LanguageModelLayer final : public Block {
 public:
  LanguageModelLayer(Module* parent, int64_t number, const LanguageModelConfig& c)
      : Block(parent, "layers." + std::to_string(number)),
        options_{.causal = true, .window = c.windowed[static_cast<size_t>(number)] ? c.window : 0},
        head_dim_(c.head_dim),
        input_norm_(this, "input_layernorm", c.width, c.eps),
        q_(this, "self_attn.q_proj", c.width, c.heads * c.head_dim, c.qkv_bias),
        k_(this, "self_attn.k_proj", c.width, c.kv_heads * c.head_dim, c.qkv_bias),
        v_(this, "self_attn.v_proj", c.width, c.kv_heads * c.head_dim, c.qkv_bias),
        o_(this, "self_attn.o_proj", c.heads * c.head_dim, c.width, /*bias=*/false),
        post_norm_(this, "post_attention_layernorm", c.width, c.eps),
        gate_(this, "mlp.gate_proj", c.width, c.mlp_width, /*bias=*/false),
        up_(this, "mlp.up_proj", c.width, c.mlp_width, /*bias=*/false),
        down_(this, "mlp.down_proj", c.mlp_width, c.width, /*bias=*/false) {
    if (!c.head_norms) return;
    q_norm_ = std::make_unique<RMSNorm>(this, "self_attn.q_norm", c.head_dim, c.eps);
    k_norm_ = std::make_unique<RMSNorm>(this, "self_attn.k_norm", c.head_dim, c.eps);
  }

  std::string_view kind() const override {
    return options_.window ? "language_model.sliding" : "language_model";
  }

  Tensors forward(const Tensors& in) override {
    const Segments rows = Segments::from_tensor(in[1]);
    const Tensors qkv = nn::forward_all({&q_, &k_, &v_}, input_norm_.forward(in[0]));
    const auto heads = [&](const at::Tensor& t) { return t.view({t.size(0), -1, head_dim_}); };
    const auto turned = [&](const at::Tensor& t, const std::unique_ptr<RMSNorm>& norm) {
      return ops::norm_rope(heads(t), norm ? norm->weight->draw() : at::Tensor(), in[2], in[3],
                            ops::RopeLayout::kHalves, input_norm_.eps);
    };
    const at::Tensor attended = ops::attention(turned(qkv[0], q_norm_), turned(qkv[1], k_norm_),
                                               heads(qkv[2]), rows, options_);
    const at::Tensor x = in[0] + o_.forward(attended);
    const Tensors mlp = nn::forward_all({&gate_, &up_}, post_norm_.forward(x));
    return {x + down_.forward(ops::swiglu(mlp[0], mlp[1]))};
  }

 private:
  ops::AttentionOptions options_;
  int64_t head_dim_;
  RMSNorm input_norm_;
  Linear q_, k_, v_, o_;
  RMSNorm post_norm_;
  Linear gate_, up_, down_;
  std::unique_ptr<RMSNorm> q_norm_, k_norm_;
};

LanguageModel::LanguageModel(const LanguageModelConfig& c)
    : TextEncoder(nullptr, ""),
      config_(c),
      embed_tokens_(this, "embed_tokens", c.vocabulary, c.width) {
  const int64_t last = c.layers_run();
  for (int64_t i = 0; i < last; ++i)
    layers_.push_back(std::make_unique<LanguageModelLayer>(this, i, c));
  if (last == c.layers) norm_ = std::make_unique<RMSNorm>(this, "norm", c.width, c.eps);
}

LanguageModel::~LanguageModel() = default;

at::Tensor LanguageModel::forward(const at::Tensor& ids_N, const Segments& rows,
                                  BlockRunner& runner) {
  const nn::Waves waves = nn::row_waves(rows, config_.head_dim, config_.rope_theta, ids_N.device());
  Tensors inputs = {embed_tokens_.forward(ids_N), rows.tensor(), waves.cos, waves.sin};
  Tensors given(config_.states.size());
  for (int64_t behind = 0;; ++behind) {
    for (size_t i = 0; i < given.size(); ++i) {
      if (config_.layers_before(config_.states[i]) != behind) continue;
      given[i] = norm_ && behind == config_.layers ? norm_->forward(inputs[0]) : inputs[0];
    }
    if (behind == std::ssize(layers_)) break;
    inputs[0] = runner.run(*layers_[static_cast<size_t>(behind)], inputs)[0];
  }
  return given.size() == 1 ? given.front() : at::cat(given, 1);
}

}  // namespace atelier::parts
