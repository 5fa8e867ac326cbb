// Shape letters: those of dit.cpp.
#include "dit_block.h"

#include <ATen/ATen.h>

#include "atelier/nn/forward_all.h"
#include "atelier/nn/level_rows.h"
#include "atelier/nn/waves.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "regions.h"

namespace qwen_image {

using atelier::Segments;
using atelier::Tensors;
using atelier::nn::Linear;
using atelier::nn::of_levels;
using atelier::nn::RMSNorm;
namespace ops = atelier::ops;

// Shift, scale and gate of the two halves of a block, of one kind of rows: [B, D] each, views of
// [B, 6 D].
struct Modulation {
  explicit Modulation(const at::Tensor& m) {
    const std::vector<at::Tensor> parts = m.chunk(6, 1);
    shift1 = parts[0], scale1 = parts[1], gate1 = parts[2];
    shift2 = parts[3], scale2 = parts[4], gate2 = parts[5];
  }
  at::Tensor shift1, scale1, gate1, shift2, scale2, gate2;
};

at::Tensor time_channels(const at::Tensor& sigma_B) {
  return atelier::nn::time_channels(sigma_B, kTimeChannels, 1000.0);
}

at::Tensor to_rows(const at::Tensor& x) {
  const int64_t B = x.size(0), C = x.size(1), T = x.size(2), H = x.size(3) / kPatch,
                W = x.size(4) / kPatch;
  return x.reshape({B, C, T, H, kPatch, W, kPatch})
      .permute({0, 2, 3, 5, 1, 4, 6})
      .reshape({B * T * H * W, C * kPatch * kPatch});
}

namespace {

// [N, D] to [N, heads, d].
at::Tensor heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1) / head_dim, head_dim});
}

// Half precision alone overflows in the residual streams.
at::Tensor in_range(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf ? at::clamp(x, -65504.0, 65504.0) : x;
}

at::Tensor second_half(const at::Tensor& x, const at::Tensor& attended, const Modulation& m,
                       const Segments& rows, const Linear& up, const Linear& down) {
  const auto [sum, normed] =
      ops::gate_residual_norm_modulate(x, attended, m.gate1, m.shift2, m.scale2, rows, kNormEps);
  const at::Tensor mlp = down.forward(ops::gelu_tanh(up.forward(normed)));
  return in_range(ops::gate_residual(sum, mlp, m.gate2, rows));
}

}  // namespace

DitBlock::DitBlock(Module* parent, std::string name, const DitConfig& c, bool last)
    : Block(parent, std::move(name)),
      head_dim_(c.head_dim),
      last_(last),
      img_mod_(this, "img_mod.1", c.width, 6 * c.width),
      norm_q_(this, "attn.norm_q", c.head_dim, kNormEps),
      norm_k_(this, "attn.norm_k", c.head_dim, kNormEps),
      to_q_(this, "attn.to_q", c.width, c.width),
      to_k_(this, "attn.to_k", c.width, c.width),
      to_v_(this, "attn.to_v", c.width, c.width),
      add_q_(this, "attn.add_q_proj", c.width, c.width),
      add_k_(this, "attn.add_k_proj", c.width, c.width),
      add_v_(this, "attn.add_v_proj", c.width, c.width),
      to_out_(this, "attn.to_out.0", c.width, c.width),
      to_add_out_(this, "attn.to_add_out", c.width, c.width),
      norm_added_q_(this, "attn.norm_added_q", c.head_dim, kNormEps),
      norm_added_k_(this, "attn.norm_added_k", c.head_dim, kNormEps),
      img_up_(this, "img_mlp.net.0.proj", c.width, c.mlp_width),
      img_down_(this, "img_mlp.net.2", c.mlp_width, c.width),
      txt_mod_(this, "txt_mod.1", c.width, 6 * c.width),
      txt_up_(this, "txt_mlp.net.0.proj", c.width, c.mlp_width),
      txt_down_(this, "txt_mlp.net.2", c.mlp_width, c.width) {}

DitBlock::~DitBlock() = default;

Tensors DitBlock::forward(const Tensors& in) {
  const Segments image_rows = Segments::from_tensor(in[kImageRows]);
  const Segments text_rows = Segments::from_tensor(in[kTextRows]);
  const bool has_halves = in.size() > kHalves && in[kHalves].defined();
  const Segments levels = has_halves ? Segments::from_tensor(in[kHalves]) : image_rows;
  const auto [image, text] =
      modulations(in[kLevel], has_halves ? in[kCleanLevel] : at::Tensor(), image_rows.count());

  at::Tensor attended = [&] {
    const at::Tensor x =
        ops::norm_modulate(in[kImage], image.shift1, image.scale1, levels, kNormEps);
    const at::Tensor y =
        ops::norm_modulate(in[kText], text.shift1, text.scale1, text_rows, kNormEps);
    const Tensors of_x = atelier::nn::forward_all({&to_q_, &to_k_, &to_v_}, x);
    const Tensors of_y = atelier::nn::forward_all({&add_q_, &add_k_, &add_v_}, y);
    // Each sample's rows are its text, then its image.
    const auto turn = [&](const at::Tensor& t, const RMSNorm& of_text, const at::Tensor& i,
                          const RMSNorm& of_image) {
      return ops::joined_norm_rope(
          {heads(t, head_dim_), of_text.weight->draw(), in[kTextCos], in[kTextSin], text_rows},
          {heads(i, head_dim_), of_image.weight->draw(), in[kImageCos], in[kImageSin], image_rows},
          ops::RopeLayout::kInterleaved, kNormEps);
    };
    const at::Tensor q = turn(of_y[0], norm_added_q_, of_x[0], norm_q_);
    const at::Tensor k = turn(of_y[1], norm_added_k_, of_x[1], norm_k_);
    const at::Tensor v = atelier::join_rows(heads(of_y[2], head_dim_), text_rows,
                                            heads(of_x[2], head_dim_), image_rows);
    const bool has_entities = in.size() > kGroups && in[kGroups].defined();
    if (!has_entities) return ops::attention(q, k, v, atelier::join(text_rows, image_rows));
    const Segments prompt_rows = Segments::from_tensor(in[kPromptRows]);
    return attend_in_regions(q, k, v, Segments::from_tensor(in[kEntityRows]),
                             atelier::join(prompt_rows, image_rows), in[kGroups]);
  }();
  auto [text_out, image_out] = atelier::split_rows(attended, text_rows, image_rows);
  attended.reset();

  at::Tensor x =
      second_half(in[kImage], to_out_.forward(image_out), image, levels, img_up_, img_down_);
  if (last_) return {x};  // nothing reads the text behind the last block
  at::Tensor y =
      second_half(in[kText], to_add_out_.forward(text_out), text, text_rows, txt_up_, txt_down_);
  return {x, y};
}

std::pair<Modulation, Modulation> DitBlock::modulations(const at::Tensor& level,
                                                        const at::Tensor& clean, int64_t B) const {
  const int64_t width = img_mod_.in_features();
  const auto part = [&](const Linear& layer, const at::Tensor& of, int64_t first) {
    return of.size(-1) == width ? of_levels(layer, of, B) : of.narrow(1, first, 6 * width);
  };
  at::Tensor image = part(img_mod_, level, 0);
  if (clean.defined())
    image = at::stack({image, part(img_mod_, clean, 0)}, 1).view({2 * B, 6 * width});
  return {Modulation(image), Modulation(part(txt_mod_, level, 6 * width))};
}

}  // namespace qwen_image
