// Shape letters: N packed rows, D width, H heads, K heads of keys, d head width.
#include "text_encoder.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/nn/waves.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace qwen_image {

using atelier::Segments;
using atelier::Tensors;
using atelier::nn::Linear;
using atelier::nn::Module;
using atelier::nn::RMSNorm;
namespace ops = atelier::ops;

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
  return run(std::move(x), cos, sin, rows, runner);
}

at::Tensor TextEncoder::run(at::Tensor x, const at::Tensor& cos, const at::Tensor& sin,
                            const Segments& rows, atelier::BlockRunner& runner) {
  for (const auto& layer : layers_) x = runner.run(*layer, {x, cos, sin, rows.tensor()})[0];
  return norm_.forward(x);
}

at::Tensor TextEncoder::forward(const at::Tensor& ids_N, std::span<const PictureRows> pictures,
                                const at::Tensor& picture_LD, atelier::BlockRunner& runner) {
  const at::Tensor text = embed_tokens_.forward(ids_N);
  const int64_t N = text.size(0);
  std::vector<at::Tensor> parts;
  int64_t next = 0, used = 0;
  for (const PictureRows& picture : pictures) {
    const int64_t count = picture.rows * picture.columns;
    parts.push_back(text.narrow(0, next, picture.start - next));
    parts.push_back(picture_LD.narrow(0, used, count).to(text.options()));
    next = picture.start + count;
    used += count;
  }
  parts.push_back(text.narrow(0, next, N - next));

  // The first pairs of channels turn with the time, others with the row or the column.
  const auto places = token_places(N, pictures).to(at::kFloat).split(1, 0);
  std::vector<at::Tensor> angles;
  int64_t first = 0;
  for (size_t axis = 0; axis < 3; ++axis) {
    const int64_t count = config_.sections[axis];
    angles.push_back(atelier::nn::rope_angles(places[axis][0], config_.head_dim, config_.rope_theta)
                         .narrow(1, first, count));
    first += count;
  }
  const at::Tensor angle = at::cat(angles, 1).to(text.device());
  return run(at::cat(parts), at::cos(angle), at::sin(angle), Segments({N}), runner);
}

at::Tensor token_places(int64_t N, std::span<const PictureRows> pictures) {
  at::Tensor places = at::empty({3, N}, at::kLong);
  int64_t token = 0, place = 0;
  const auto count_up = [&](int64_t end) {
    places.narrow(1, token, end - token)
        .copy_(at::arange(place, place + end - token, at::kLong).unsqueeze(0));
    place += end - token;
    token = end;
  };
  for (const PictureRows& picture : pictures) {
    count_up(picture.start);
    const int64_t count = picture.rows * picture.columns;
    const at::Tensor number = at::arange(count, at::kLong);
    const at::Tensor row = at::floor_divide(number, picture.columns);
    places.narrow(1, token, count)
        .copy_(at::stack({at::zeros_like(number), row, number - row * picture.columns}) + place);
    token += count;
    place += std::max(picture.rows, picture.columns);
  }
  count_up(N);
  return places;
}

}  // namespace qwen_image
