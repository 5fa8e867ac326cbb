#include "dit_block.h"

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/forward_all.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace wan {

using atelier::Segments;
using atelier::Tensors;
using atelier::nn::LayerNorm;
using atelier::nn::Linear;
using atelier::nn::RMSNorm;
namespace ops = atelier::ops;

namespace {

constexpr double kImageNormEps = 1e-5;

}  // namespace

Attention::Attention(Module* parent, std::string name, const DitConfig& c, bool sees_images)
    : Module(parent, std::move(name)),
      head_dim_(c.head_dim()),
      q_(this, "q", c.width, c.width),
      k_(this, "k", c.width, c.width),
      v_(this, "v", c.width, c.width),
      o_(this, "o", c.width, c.width),
      norm_q_(this, "norm_q", c.width, c.norm_eps),
      norm_k_(this, "norm_k", c.width, c.norm_eps) {
  if (!sees_images) return;
  k_img_ = std::make_unique<Linear>(this, "k_img", c.width, c.width);
  v_img_ = std::make_unique<Linear>(this, "v_img", c.width, c.width);
  norm_k_img_ = std::make_unique<RMSNorm>(this, "norm_k_img", c.width, c.norm_eps);
}

Attention::~Attention() = default;

at::Tensor Attention::heads(const at::Tensor& x) const {
  return x.view({x.size(0), x.size(1) / head_dim_, head_dim_});
}

Tensors Attention::project(const at::Tensor& x, const at::Tensor& cos,
                           const at::Tensor& sin) const {
  const auto turn = [&](const at::Tensor& t) {
    return ops::norm_rope(heads(t), {}, cos, sin, ops::RopeLayout::kInterleaved);
  };
  const Tensors qkv = atelier::nn::forward_all({&q_, &k_, &v_}, x);
  return {turn(norm_q_.forward(qkv[0])), turn(norm_k_.forward(qkv[1])), heads(qkv[2])};
}

at::Tensor Attention::across(const at::Tensor& x, const Segments& rows, const at::Tensor& text,
                             const at::Tensor& text_offsets, const at::Tensor& image,
                             const at::Tensor& image_offsets) const {
  const at::Tensor q = heads(norm_q_.forward(q_.forward(x)));
  const Tensors kv = atelier::nn::forward_all({&k_, &v_}, text);
  at::Tensor seen = ops::attention(q, heads(norm_k_.forward(kv[0])), heads(kv[1]), rows,
                                   Segments::from_tensor(text_offsets), {});
  if (image.defined()) {
    const Tensors of_image = atelier::nn::forward_all({k_img_.get(), v_img_.get()}, image);
    seen = seen + ops::attention(q, heads(norm_k_img_->forward(of_image[0])), heads(of_image[1]),
                                 rows, Segments::from_tensor(image_offsets), {});
  }
  return o_.forward(seen);
}

ImageEmbedding::ImageEmbedding(Module* parent, std::string name, const DitConfig& c)
    : Module(parent, std::move(name)),
      norm_in_(this, "proj.0", c.image_width, kImageNormEps, kFloat32),
      in_(this, "proj.1", c.image_width, c.image_width),
      out_(this, "proj.3", c.image_width, c.width),
      norm_out_(this, "proj.4", c.width, kImageNormEps, kFloat32) {
  if (c.image_rows > 0) positions_ = declare("emb_pos", {1, c.image_rows, c.image_width});
}

ImageEmbedding::~ImageEmbedding() = default;

at::Tensor ImageEmbedding::forward(const atelier::PackedRows& images, at::ScalarType dtype) const {
  at::Tensor x = images.values.to(dtype);
  if (positions_) {
    const int64_t B = images.rows.count(), L = positions_->sizes()[1];
    if (!images.rows.is_uniform() || images.rows.longest() != L) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           std::to_string(images.rows.longest()) + " rows of images, " +
                               std::to_string(L) + " are read",
                           "give the first and the last frame");
    }
    x = (x.view({B, L, -1}) + positions_->draw()).flatten(0, 1);
  }
  return norm_out_.forward(out_.forward(at::gelu(in_.forward(norm_in_.forward(x)))));
}

Head::Head(Module* parent, std::string name, const DitConfig& c)
    : Module(parent, std::move(name)),
      eps_(c.norm_eps),
      modulation_(declare("modulation", {1, 2, c.width}, kFloat32)),
      head_(this, "head", c.width, c.channels * c.patch * c.patch) {}

Head::~Head() = default;

at::Tensor Head::forward(const at::Tensor& x, const at::Tensor& time_SD,
                         const Segments& levels) const {
  const std::vector<at::Tensor> m = (modulation_->draw() + time_SD.unsqueeze(1)).unbind(1);
  return head_.forward(ops::norm_modulate(x, m[0], m[1], levels, eps_));
}

DitBlock::DitBlock(Module* parent, std::string name, const DitConfig& c)
    : Block(parent, std::move(name)),
      eps_(c.norm_eps),
      modulation_(declare("modulation", {1, 6, c.width}, kFloat32)),
      self_attn_(this, "self_attn", c),
      cross_attn_(this, "cross_attn", c, /*sees_images=*/c.image_width > 0),
      norm3_(this, "norm3", c.width, c.norm_eps, kFloat32),
      up_(this, "ffn.0", c.width, c.mlp_width),
      down_(this, "ffn.2", c.mlp_width, c.width) {}

DitBlock::~DitBlock() = default;

Tensors DitBlock::forward(const Tensors& in) {
  const std::vector<at::Tensor> m = modulation(in);
  const Tensors qkv = project(in, m);
  if (in.size() == kText) return {qkv[1], qkv[2]};
  const Segments rows = Segments::from_tensor(in[kOffsets]);
  if (in.size() <= kBesideKeys)
    return {finish(in, m, ops::attention(qkv[0], qkv[1], qkv[2], rows))};
  const std::vector<ops::KeySet> sets = {
      {qkv[1], qkv[2], rows},
      {in[kBesideKeys], in[kBesideValues], Segments::from_tensor(in[kBesideOffsets])}};
  return {finish(in, m, ops::attention(qkv[0], rows, sets)), qkv[1], qkv[2]};
}

std::vector<at::Tensor> DitBlock::modulation(const Tensors& in) const {
  const int64_t levels = Segments::from_tensor(in[kLevelOffsets]).count();
  return (modulation_->draw() + in[kTime].view({levels, 6, -1})).unbind(1);
}

Tensors DitBlock::project(const Tensors& in, const std::vector<at::Tensor>& m) const {
  const Segments levels = Segments::from_tensor(in[kLevelOffsets]);
  return self_attn_.project(ops::norm_modulate(in[kRows], m[0], m[1], levels, eps_), in[kCos],
                            in[kSin]);
}

at::Tensor DitBlock::finish(const Tensors& in, const std::vector<at::Tensor>& m,
                            const at::Tensor& seen) const {
  const Segments rows = Segments::from_tensor(in[kOffsets]);
  const Segments levels = Segments::from_tensor(in[kLevelOffsets]);
  const bool has_images = in.size() > kImage;
  at::Tensor x = ops::gate_residual(in[kRows], self_attn_.finish(seen), m[2], levels);
  x = x + cross_attn_.across(norm3_.forward(x), rows, in[kText], in[kTextOffsets],
                             has_images ? in[kImage] : at::Tensor(),
                             has_images ? in[kImageOffsets] : at::Tensor());
  const at::Tensor normed = ops::norm_modulate(x, m[3], m[4], levels, eps_);
  const at::Tensor mlp = down_.forward(ops::gelu_tanh(up_.forward(normed)));
  return ops::gate_residual(x, mlp, m[5], levels);
}

}  // namespace wan
