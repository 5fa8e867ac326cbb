#include "encoder_layer.h"

#include <ATen/ATen.h>

#include "atelier/nn/forward_all.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace atelier::parts {

at::Tensor activated(const at::Tensor& x, Activation activation) {
  if (activation == Activation::kQuickGelu) return x * at::sigmoid(x * 1.702);
  return activation == Activation::kGelu ? at::gelu(x) : ops::gelu_tanh(x);
}

EncoderLayer::EncoderLayer(nn::Module* parent, std::string name, const EncoderLayerOptions& o)
    : Block(parent, std::move(name)),
      options_(o),
      norm1_(this, o.norm1, o.width, o.eps),
      q_(this, std::string(o.attention) + ".q_proj", o.width, o.width),
      k_(this, std::string(o.attention) + ".k_proj", o.width, o.width),
      v_(this, std::string(o.attention) + ".v_proj", o.width, o.width),
      out_(this, std::string(o.attention) + ".out_proj", o.width, o.width),
      norm2_(this, o.norm2, o.width, o.eps),
      up_(this, o.up, o.width, o.mlp_width),
      down_(this, o.down, o.mlp_width, o.width) {}

EncoderLayer::~EncoderLayer() = default;

Tensors EncoderLayer::forward(const Tensors& in) {
  const Tensors qkv = nn::forward_all({&q_, &k_, &v_}, norm1_.forward(in[0]));
  const auto heads = [&](const at::Tensor& t) {
    return t.view({t.size(0), options_.heads, t.size(1) / options_.heads});
  };
  const at::Tensor attended =
      ops::attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), Segments::from_tensor(in[1]),
                     {.causal = options_.causal});
  const at::Tensor x = in[0] + out_.forward(attended);
  const at::Tensor wide = activated(up_.forward(norm2_.forward(x)), options_.activation);
  return {x + down_.forward(wide)};
}

}  // namespace atelier::parts
