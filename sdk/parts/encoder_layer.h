// The layer of encoders that norm in front of attention and of their products: texts of CLIP,
// SigLIP and wav2vec2. They differ in names.
#pragma once

#include <string_view>

#include "atelier/block.h"
#include "atelier/nn/layers.h"

namespace atelier::parts {

enum class Activation { kGelu, kGeluTanh, kQuickGelu };

at::Tensor activated(const at::Tensor& x, Activation activation);

struct EncoderLayerOptions {
  std::string_view kind;
  int64_t width, heads, mlp_width;
  double eps;
  Activation activation = Activation::kGelu;
  bool causal = false;
  // Names of what a layer is made of; attention's products are q_proj, k_proj, v_proj and out_proj.
  const char *norm1 = "layer_norm1", *attention = "self_attn", *norm2 = "layer_norm2",
             *up = "mlp.fc1", *down = "mlp.fc2";
};

// Inputs: rows [N, D] and offsets of the samples. Outputs: rows.
class EncoderLayer final : public Block {
 public:
  EncoderLayer(nn::Module* parent, std::string name, const EncoderLayerOptions& options);
  ~EncoderLayer() override;

  std::string_view kind() const override { return options_.kind; }
  Tensors forward(const Tensors& in) override;

 private:
  EncoderLayerOptions options_;
  nn::LayerNorm norm1_;
  nn::Linear q_, k_, v_, out_;
  nn::LayerNorm norm2_;
  nn::Linear up_, down_;
};

}  // namespace atelier::parts
