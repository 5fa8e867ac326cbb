// Shape letters: N packed rows, D width, H heads, K heads of keys, d head width.
#include "text_encoder.h"

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/nn/waves.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace qwen_image {

using atelier::Error;
using atelier::ErrorCode;
using atelier::Segments;
using atelier::Tensors;
using atelier::nn::Linear;
using atelier::nn::Module;
using atelier::nn::RMSNorm;
namespace ops = atelier::ops;

namespace {

constexpr std::string_view kBefore =
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
    "quantity, text, "
    "spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";
constexpr std::string_view kAfter = "<|im_end|>\n<|im_start|>assistant\n";

}  // namespace

// Inputs: rows [N, D], cosines and sines [N, d / 2], offsets of the samples. Outputs: rows.
class TextLayer final : public atelier::Block {
 public:
  TextLayer(Module* parent, int64_t number, const TextEncoderConfig& c)
      : Block(parent, "layers." + std::to_string(number)),
        options_{.causal = true, .window = c.windowed[static_cast<size_t>(number)] ? c.window : 0},
        head_dim_(c.head_dim),
        input_norm_(this, "input_layernorm", c.width, c.eps),
        q_(this, "self_attn.q_proj", c.width, c.heads * c.head_dim),
        k_(this, "self_attn.k_proj", c.width, c.kv_heads * c.head_dim),
        v_(this, "self_attn.v_proj", c.width, c.kv_heads * c.head_dim),
        o_(this, "self_attn.o_proj", c.heads * c.head_dim, c.width, /*bias=*/false),
        post_norm_(this, "post_attention_layernorm", c.width, c.eps),
        gate_(this, "mlp.gate_proj", c.width, c.mlp_width, /*bias=*/false),
        up_(this, "mlp.up_proj", c.width, c.mlp_width, /*bias=*/false),
        down_(this, "mlp.down_proj", c.mlp_width, c.width, /*bias=*/false) {}

  std::string_view kind() const override {
    return options_.window ? "text_layer.sliding" : "text_layer";
  }

  Tensors forward(const Tensors& in) override {
    const Segments rows = Segments::from_tensor(in[3]);
    at::Tensor x = in[0];
    {
      const at::Tensor h = input_norm_.forward(x);
      const auto heads = [&](const Linear& layer) {
        const at::Tensor y = layer.forward(h);
        return y.view({y.size(0), y.size(1) / head_dim_, head_dim_});
      };
      const auto turn = [&](const at::Tensor& y) {
        return ops::norm_rope(y, at::Tensor(), in[1], in[2], ops::RopeLayout::kHalves);
      };
      const at::Tensor q = turn(heads(q_)), k = turn(heads(k_));
      x = x + o_.forward(ops::attention(q, k, heads(v_), rows, options_));
    }
    const at::Tensor h = post_norm_.forward(x);
    return {x + down_.forward(ops::swiglu(gate_.forward(h), up_.forward(h)))};
  }

 private:
  ops::AttentionOptions options_;
  int64_t head_dim_;
  RMSNorm input_norm_;
  Linear q_, k_, v_, o_;
  RMSNorm post_norm_;
  Linear gate_, up_, down_;
};

TextEncoder::TextEncoder(const TextEncoderConfig& c)
    : atelier::TextEncoder(nullptr, "text_encoder"),
      config_(c),
      embed_tokens_(this, "embed_tokens", c.vocabulary, c.width),
      norm_(this, "norm", c.width, c.eps) {
  for (int64_t i = 0; i < c.layers; ++i) {
    layers_.push_back(std::make_unique<TextLayer>(this, i, c));
  }
}

TextEncoder::~TextEncoder() = default;

at::Tensor TextEncoder::forward(const at::Tensor& ids_N, const Segments& rows,
                                atelier::BlockRunner& runner) {
  at::Tensor x = embed_tokens_.forward(ids_N);

  // Without images all three axes of a position count up together, so one angle per pair of
  // channels is enough.
  const auto [cos, sin] =
      atelier::nn::row_waves(rows, config_.head_dim, config_.rope_theta, x.device());
  for (const auto& layer : layers_) x = runner.run(*layer, {x, cos, sin, rows.tensor()})[0];
  return norm_.forward(x);
}

// The beginning alone has 34 tokens with the published tokenizer.
PromptTemplate::PromptTemplate(const atelier::text::Tokenizer& tokenizer)
    : tokenizer_(tokenizer), skip_(std::ssize(tokenizer.encode(kBefore))) {}

std::vector<int64_t> PromptTemplate::tokens(std::string_view prompt) const {
  for (const std::string_view mark : {"<|im_start|>", "<|im_end|>"}) {
    if (!tokenizer_.id(mark)) {
      throw Error(ErrorCode::kInvalidArgument, "the tokenizer has no token " + std::string(mark),
                  "pass the tokenizer folder that is published with the model");
    }
  }
  // The whole text at once: a prompt that begins with a line break shares a token with the
  // template.
  std::string whole(kBefore);
  whole.append(prompt.empty() ? " " : prompt).append(kAfter);
  return tokenizer_.encode(whole);
}

}  // namespace qwen_image
