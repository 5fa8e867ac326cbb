// Shape letters: N rows of an image, D width, d head width, H and W height and width.
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/ops/attention.h"
#include "atelier/parts/clip.h"

#include "clip_pixels.h"
#include "encoder_layer.h"
#include "hidden_states.h"

namespace atelier::parts {

using nn::LayerNorm;
using nn::Linear;
using nn::Module;

namespace {

at::Tensor per_channel(const double (&values)[3], const at::Tensor& like) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(like.options()).view({3, 1, 1});
}

// [3, side, side] in [0, 1], float32. Pixels are whole levels of 255 behind the scaling, as in the
// published pipeline, which scales stored images.
at::Tensor scaled_to(const at::Tensor& image, int64_t side) {
  const at::Tensor x = image.to(at::kFloat);
  const int64_t H = x.size(1), W = x.size(2);
  const int64_t height = H <= W ? side : side * H / W, width = H <= W ? side * W / H : side;
  const at::Tensor scaled =
      at::_upsample_bicubic2d_aa(x.unsqueeze(0), {height, width}, /*align_corners=*/false)[0];
  const at::Tensor cut =
      scaled.narrow(1, (height - side) / 2, side).narrow(2, (width - side) / 2, side);
  return at::round(at::clamp(cut * 127.5 + 127.5, 0, 255)) / 255;
}

}  // namespace

// Inputs and output: rows [N, D].
class ClipVisionBlock final : public Block {
 public:
  ClipVisionBlock(Module* parent, std::string name, const ClipVisionConfig& c)
      : Block(parent, std::move(name)),
        heads_(c.heads),
        activation_(c.quick_gelu ? Activation::kQuickGelu : Activation::kGelu),
        norm1_(this, "norm1", c.width, c.eps),
        to_qkv_(this, "attn.to_qkv", c.width, 3 * c.width),
        proj_(this, "attn.proj", c.width, c.width),
        norm2_(this, "norm2", c.width, c.eps),
        up_(this, "mlp.0", c.width, c.mlp_width),
        down_(this, "mlp.2", c.mlp_width, c.width) {}
  ~ClipVisionBlock() override = default;

  std::string_view kind() const override { return "clip"; }

  Tensors forward(const Tensors& in) override {
    const int64_t N = in[0].size(0);
    const at::Tensor qkv = to_qkv_.forward(norm1_.forward(in[0])).view({N, 3, heads_, -1});
    const at::Tensor attended = ops::attention(qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2),
                                               Segments::uniform(1, N));
    const at::Tensor x = in[0] + proj_.forward(attended);
    return {x + down_.forward(activated(up_.forward(norm2_.forward(x)), activation_))};
  }

 private:
  int64_t heads_;
  Activation activation_;
  LayerNorm norm1_;
  Linear to_qkv_, proj_;
  LayerNorm norm2_;
  Linear up_, down_;
};

int64_t ClipVisionConfig::image_side() const {
  return patch * std::llround(std::sqrt(static_cast<double>(rows - 1)));
}

int64_t ClipVisionConfig::layers_run() const {
  return layers_of_states(*this);
}

ClipVision::ClipVision(const ClipVisionConfig& c)
    : Module(nullptr, ""),
      config_(c),
      cls_embedding_(declare("cls_embedding", c.has_batch_axes ? std::vector<int64_t>{1, 1, c.width}
                                                               : std::vector<int64_t>{c.width})),
      pos_embedding_(declare("pos_embedding", c.has_batch_axes
                                                  ? std::vector<int64_t>{1, c.rows, c.width}
                                                  : std::vector<int64_t>{c.rows, c.width})),
      patch_embedding_(declare("patch_embedding.weight", {c.width, 3, c.patch, c.patch})),
      pre_norm_(this, "pre_norm", c.width, c.eps) {
  const int64_t last = c.layers_run();
  for (int64_t i = 0; i < last; ++i) {
    blocks_.push_back(
        std::make_unique<ClipVisionBlock>(this, "transformer." + std::to_string(i), c));
  }
}

ClipVision::~ClipVision() = default;

at::Tensor ClipVision::forward(const at::Tensor& image, BlockRunner& runner) const {
  return look_at(scaled_to(image, side()), runner);
}

at::Tensor ClipVision::look(const at::Tensor& pixels, BlockRunner& runner) const {
  return look_at(pixels.to(at::kFloat) * 0.5 + 0.5, runner);
}

at::Tensor ClipVision::look_at(const at::Tensor& levels, BlockRunner& runner) const {
  const at::Tensor positions = pos_embedding_->draw().view({config_.rows, config_.width});
  const at::Tensor normed =
      (levels - per_channel(kClipMean, levels)) / per_channel(kClipStd, levels);
  const at::Tensor pixels = normed.to(positions.options());
  const at::Tensor patches =
      ops::conv2d(pixels.unsqueeze(0), patch_embedding_, nullptr, {.stride = config_.patch});
  const at::Tensor rows =
      at::cat({cls_embedding_->draw().view({1, config_.width}), patches[0].flatten(1).t()});
  Tensors inputs = {pre_norm_.forward(rows + positions)};
  return side_by_side(hidden_states(blocks_, inputs, layers_before_states(config_), runner));
}

}  // namespace atelier::parts
