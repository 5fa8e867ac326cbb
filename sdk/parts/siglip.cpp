// Shape letters: N rows of an image, D width, H and W height and width.
#include "atelier/parts/siglip.h"

#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/nn/forward_all.h"
#include "atelier/ops/attention.h"

#include "encoder_layer.h"

namespace atelier::parts {

using nn::LayerNorm;
using nn::Linear;
using nn::Module;

namespace {

// [3, side, side] in [-1, 1], in float32. Pixels are whole levels of 255 behind the scaling, as in
// the published pipelines, which scale stored images.
at::Tensor prepared(const at::Tensor& image, const SiglipConfig& c) {
  const at::Tensor x = image.to(at::kFloat).unsqueeze(0);
  const int64_t side = c.image_side();
  const at::Tensor scaled =
      c.is_bilinear ? at::_upsample_bilinear2d_aa(x, {side, side}, /*align_corners=*/false)[0]
                    : at::_upsample_bicubic2d_aa(x, {side, side}, /*align_corners=*/false)[0];
  return at::round(at::clamp(scaled * 127.5 + 127.5, 0, 255)) / 127.5 - 1;
}

EncoderLayerOptions layer_options(const SiglipConfig& c) {
  return {.kind = "siglip",
          .width = c.width,
          .heads = c.heads,
          .mlp_width = c.mlp_width,
          .eps = c.eps,
          .activation = Activation::kGeluTanh};
}

}  // namespace

// A learned query attends to the rows. Inputs: rows [N, D]. Outputs: a row for the image, [1, D].
class SiglipHead final : public Block {
 public:
  SiglipHead(Module* parent, const SiglipConfig& c)
      : Block(parent, "head"),
        heads_(c.heads),
        probe_(declare("probe", {1, 1, c.width})),
        q_(this, "attention.q_proj", c.width, c.width),
        k_(this, "attention.k_proj", c.width, c.width),
        v_(this, "attention.v_proj", c.width, c.width),
        out_(this, "attention.out_proj", c.width, c.width),
        norm_(this, "layernorm", c.width, c.eps),
        up_(this, "mlp.fc1", c.width, c.mlp_width),
        down_(this, "mlp.fc2", c.mlp_width, c.width) {}
  ~SiglipHead() override = default;

  std::string_view kind() const override { return "siglip.head"; }

  Tensors forward(const Tensors& in) override {
    const auto heads = [&](const at::Tensor& t) {
      return t.view({t.size(0), heads_, t.size(1) / heads_});
    };
    const Tensors kv = nn::forward_all({&k_, &v_}, in[0]);
    const at::Tensor query = q_.forward(probe_->draw().squeeze(0));
    const at::Tensor x = out_.forward(ops::attention(heads(query), heads(kv[0]), heads(kv[1]),
                                                     Segments::uniform(1, 1),
                                                     Segments::uniform(1, in[0].size(0)), {}));
    return {x + down_.forward(activated(up_.forward(norm_.forward(x)), Activation::kGeluTanh))};
  }

 private:
  int64_t heads_;
  WeightPtr probe_;
  Linear q_, k_, v_, out_;
  LayerNorm norm_;
  Linear up_, down_;
};

int64_t SiglipConfig::image_side() const {
  return patch * std::llround(std::sqrt(static_cast<double>(rows)));
}

Siglip::Siglip(const SiglipConfig& c)
    : Module(nullptr, ""),
      config_(c),
      patch_embedding_(this, "embeddings.patch_embedding", 3, c.width, c.patch,
                       {.stride = c.patch}),
      position_embedding_(declare("embeddings.position_embedding.weight", {c.rows, c.width})),
      post_norm_(this, "post_layernorm", c.width, c.eps) {
  for (int64_t i = 0; i < c.layers; ++i) {
    layers_.push_back(std::make_unique<EncoderLayer>(this, "encoder.layers." + std::to_string(i),
                                                     layer_options(c)));
  }
  if (c.pools) head_ = std::make_unique<SiglipHead>(this, c);
}

Siglip::~Siglip() = default;

at::Tensor Siglip::forward(const at::Tensor& image, BlockRunner& runner) const {
  const at::Tensor positions = position_embedding_->draw();
  const at::Tensor pixels = prepared(image, config_).to(positions.options());
  const at::Tensor patches = patch_embedding_.forward(pixels.unsqueeze(0))[0].flatten(1).t();
  const Segments rows = Segments::uniform(1, config_.rows);
  at::Tensor x = patches + positions;
  for (const auto& layer : layers_) x = runner.run(*layer, {x, rows.tensor()})[0];
  return post_norm_.forward(x);
}

at::Tensor Siglip::pooled(const at::Tensor& rows_ND, BlockRunner& runner) const {
  if (!head_)
    throw Error(ErrorCode::kUnsupported, "SigLIP's pooling head is not loaded",
                "the family's SiglipUse says that it pools");
  return runner.run(*head_, {rows_ND})[0];
}

}  // namespace atelier::parts
