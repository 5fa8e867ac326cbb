// Shape letters: B samples, C latent channels, T frames, H and W latent height and width, D width,
// d head width, L rows of a prompt, N packed rows of all samples, S stretches of rows that have one
// noise level: one a sample, or two where the first frame is clean.
#include "dit.h"

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/forward_all.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "motion.h"

namespace wan {

using atelier::Segments;
using atelier::SharedRows;
using atelier::Tensors;
using atelier::nn::LayerNorm;
using atelier::nn::Linear;
using atelier::nn::Module;
using atelier::nn::RMSNorm;
namespace ops = atelier::ops;

namespace {

constexpr double kRopeTheta = 10000;
constexpr atelier::WeightOptions kFloat32 = {.keeps_float32 = true};

// Angles of positions 0 to count - 1: [count, channels / 2] float64.
at::Tensor angles(int64_t count, int64_t channels, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kDouble);
  return atelier::nn::rope_angles(at::arange(count, options), channels, kRopeTheta);
}

// q, k and v of one attention, with norms over all heads of q and k, and what comes behind it.
class Attention final : public Module {
 public:
  // With `sees_images` it has keys and values of its own for them.
  Attention(Module* parent, std::string name, const DitConfig& c, bool sees_images = false)
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
  ~Attention() override = default;

  // Among the rows of a clip, whose places turn q and k.
  at::Tensor forward(const at::Tensor& x, const Segments& rows, const at::Tensor& cos,
                     const at::Tensor& sin) const {
    const auto turn = [&](const at::Tensor& t) {
      return ops::norm_rope(heads(t), {}, cos, sin, ops::RopeLayout::kInterleaved);
    };
    const Tensors qkv = atelier::nn::forward_all({&q_, &k_, &v_}, x);
    return o_.forward(ops::attention(turn(norm_q_.forward(qkv[0])), turn(norm_k_.forward(qkv[1])),
                                     heads(qkv[2]), rows));
  }

  // From the rows of a clip to those of its prompt and, where `image` is defined, to those of its
  // images, and the sum of both.
  at::Tensor across(const at::Tensor& x, const Segments& rows, const at::Tensor& text,
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

 private:
  at::Tensor heads(const at::Tensor& x) const {
    return x.view({x.size(0), x.size(1) / head_dim_, head_dim_});
  }

  int64_t head_dim_;
  Linear q_, k_, v_, o_;
  RMSNorm norm_q_, norm_k_;
  std::unique_ptr<Linear> k_img_, v_img_;
  std::unique_ptr<RMSNorm> norm_k_img_;
};

}  // namespace

// Rows of an image encoder as the blocks read them.
class ImageEmbedding final : public Module {
 public:
  ImageEmbedding(Module* parent, std::string name, const DitConfig& c)
      : Module(parent, std::move(name)),
        norm_in_(this, "proj.0", c.image_width, kImageNormEps, kFloat32),
        in_(this, "proj.1", c.image_width, c.image_width),
        out_(this, "proj.3", c.image_width, c.width),
        norm_out_(this, "proj.4", c.width, kImageNormEps, kFloat32) {
    if (c.image_rows > 0) positions_ = declare("emb_pos", {1, c.image_rows, c.image_width});
  }
  ~ImageEmbedding() override = default;

  // Returns [B L, D].
  at::Tensor forward(const atelier::PackedRows& images, at::ScalarType dtype) const {
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

 private:
  static constexpr double kImageNormEps = 1e-5;
  LayerNorm norm_in_;
  Linear in_, out_;
  LayerNorm norm_out_;
  atelier::WeightPtr positions_;
};

// Inputs: rows [N, D], cosines and sines of the rows, offsets of the samples' rows, offsets of
// those that have one noise level, time [S, 6 D] float32, rows of the prompts [B L, D] and their
// offsets, and where images are read the same of them. Output: rows.
class DitBlock final : public atelier::Block {
 public:
  enum Input {
    kRows,
    kCos,
    kSin,
    kOffsets,
    kLevelOffsets,
    kTime,
    kText,
    kTextOffsets,
    kImage,
    kImageOffsets
  };

  DitBlock(Module* parent, std::string name, const DitConfig& c)
      : Block(parent, std::move(name)),
        eps_(c.norm_eps),
        modulation_(declare("modulation", {1, 6, c.width}, kFloat32)),
        self_attn_(this, "self_attn", c),
        cross_attn_(this, "cross_attn", c, /*sees_images=*/c.image_width > 0),
        norm3_(this, "norm3", c.width, c.norm_eps, kFloat32),
        up_(this, "ffn.0", c.width, c.mlp_width),
        down_(this, "ffn.2", c.mlp_width, c.width) {}
  ~DitBlock() override = default;

  std::string_view kind() const override { return "dit"; }

  Tensors forward(const Tensors& in) override {
    const Segments rows = Segments::from_tensor(in[kOffsets]);
    const Segments levels = Segments::from_tensor(in[kLevelOffsets]);
    const bool has_images = in.size() > kImage;
    const std::vector<at::Tensor> m =
        (modulation_->draw() + in[kTime].view({levels.count(), 6, -1})).unbind(1);
    const at::Tensor attended = self_attn_.forward(
        ops::norm_modulate(in[kRows], m[0], m[1], levels, eps_), rows, in[kCos], in[kSin]);
    at::Tensor x = ops::gate_residual(in[kRows], attended, m[2], levels);
    x = x + cross_attn_.across(norm3_.forward(x), rows, in[kText], in[kTextOffsets],
                               has_images ? in[kImage] : at::Tensor(),
                               has_images ? in[kImageOffsets] : at::Tensor());
    const at::Tensor normed = ops::norm_modulate(x, m[3], m[4], levels, eps_);
    const at::Tensor mlp = down_.forward(ops::gelu_tanh(up_.forward(normed)));
    return {ops::gate_residual(x, mlp, m[5], levels)};
  }

 private:
  double eps_;
  atelier::WeightPtr modulation_;
  Attention self_attn_, cross_attn_;
  LayerNorm norm3_;
  Linear up_, down_;
};

Dit::Dit(const DitConfig& c)
    : Denoiser(nullptr, "dit"),
      config_(c),
      patch_embedding_(this, "patch_embedding", c.channels + c.given_channels, c.width,
                       {1, c.patch, c.patch}, {.stride = {1, c.patch, c.patch}}),
      text_in_(this, "text_embedding.0", c.text_width, c.width),
      text_out_(this, "text_embedding.2", c.width, c.width),
      time_in_(this, "time_embedding.0", c.time_width, c.width, /*bias=*/true, kFloat32),
      time_out_(this, "time_embedding.2", c.width, c.width, /*bias=*/true, kFloat32),
      time_projection_(this, "time_projection.1", c.width, 6 * c.width, /*bias=*/true, kFloat32),
      head_modulation_(declare("head.modulation", {1, 2, c.width}, kFloat32)),
      head_(this, "head.head", c.width, c.channels * c.patch * c.patch) {
  if (c.image_width > 0) image_embedding_ = std::make_unique<ImageEmbedding>(this, "img_emb", c);
  for (int64_t i = 0; i < c.layers; ++i)
    blocks_.push_back(std::make_unique<DitBlock>(this, "blocks." + std::to_string(i), c));
}

Dit::~Dit() = default;

std::vector<atelier::ConditioningEntry> Dit::entries() const {
  std::vector<atelier::ConditioningEntry> entries = {{.width = config_.text_width}};
  if (config_.image_width > 0) {
    entries.push_back({.name = kImageEmbeds,
                       .width = config_.image_width,
                       .lengths = "image_lengths",
                       .encoder = ""});
  }
  entries.push_back({.name = config_.given_channels > 0 ? kGivenClip : kFirstFrame});
  entries.push_back({.name = kMotionRows});
  return entries;
}

atelier::nn::Waves Dit::make_rope(int64_t frames, int64_t height, int64_t width, int64_t count,
                                  at::Device device) const {
  const int64_t d = config_.head_dim(), side = d / 6 * 2;  // channels of rows, and of columns
  const std::vector<int64_t> grid = {frames, height, width, -1};
  const at::Tensor angle =
      at::cat({angles(frames, d - 2 * side, device).view({frames, 1, 1, -1}).expand(grid),
               angles(height, side, device).view({1, height, 1, -1}).expand(grid),
               angles(width, side, device).view({1, 1, width, -1}).expand(grid)},
              3)
          .flatten(0, 2);
  return {at::cos(angle).to(at::kFloat).repeat({count, 1}),
          at::sin(angle).to(at::kFloat).repeat({count, 1})};
}

// [B L, D]. The rows behind a prompt's tokens become the same, and are attended to.
at::Tensor Dit::embed_text(const atelier::DenoiseInputs& in, at::ScalarType dtype) const {
  const atelier::PackedRows prompts = atelier::pack_entry(in.cond, atelier::kPromptEmbeds);
  const at::Tensor values = at::constant_pad_nd(prompts.values.to(dtype), {0, 0, 0, 1});
  const at::Tensor rows = text_out_.forward(ops::gelu_tanh(text_in_.forward(values)));
  const at::Tensor behind = rows.narrow(0, rows.size(0) - 1, 1);
  Tensors parts;
  for (int64_t b = 0; b < prompts.rows.count(); ++b) {
    const int64_t length = prompts.rows.length(b);
    if (length > kTextRows) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           "prompt_embeds of " + std::to_string(length) + " rows, at most " +
                               std::to_string(kTextRows) + " are read");
    }
    parts.push_back(rows.narrow(0, prompts.rows.offset(b), length));
    parts.push_back(behind.expand({kTextRows - length, -1}));
  }
  return at::cat(parts, 0);
}

// [S, D] float32.
at::Tensor Dit::embed_time(const at::Tensor& sigma_S) const {
  const at::Tensor channels = atelier::nn::time_channels(sigma_S * 1000, config_.time_width);
  return time_out_.forward(at::silu(time_in_.forward(channels)));
}

namespace {

// The stretches of rows that have one noise level, and those levels.
struct Levels {
  Segments rows;
  at::Tensor sigma_S;
};

Levels levels_of(const atelier::DenoiseInputs& in, int64_t frames, int64_t rows_of_frame) {
  std::vector<int64_t> lengths;
  Tensors sigmas;
  const at::Tensor clean = at::zeros({1}, in.sigma_B.options());
  for (size_t b = 0; b < in.cond.size(); ++b) {
    const int64_t known = in.cond[b]->contains(kFirstFrame) ? 1 : 0;
    if (known > 0) {
      lengths.push_back(rows_of_frame);
      sigmas.push_back(clean);
    }
    if (known == frames) continue;
    lengths.push_back((frames - known) * rows_of_frame);
    sigmas.push_back(in.sigma_B.narrow(0, static_cast<int64_t>(b), 1));
  }
  return {Segments(lengths), at::cat(sigmas)};
}

}  // namespace

// The latents and what is known of the clip, side by side.
at::Tensor Dit::with_given(const atelier::DenoiseInputs& in) const {
  const at::Tensor& x = in.x_BCTHW;
  if (config_.given_channels == 0) return x;
  std::vector<int64_t> sizes = x.sizes().slice(1).vec();
  sizes[0] = config_.given_channels;
  Tensors given;
  for (const atelier::Conditioning* cond : in.cond) {
    given.push_back(atelier::named_tensor(*cond, kGivenClip, 4).to(x.scalar_type()));
    if (given.back().sizes() != sizes) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           "given_clip of shape " + atelier::shape_text(given.back()) +
                               ", it does not fit latents of shape " + atelier::shape_text(x));
    }
  }
  return at::cat({x, at::stack(given)}, 1);
}

// The projected time, a row for each sample, and what a controller adds to it.
at::Tensor Dit::with_motion(const atelier::DenoiseInputs& in, const at::Tensor& projected) const {
  Tensors rows = projected.unbind(0);
  bool moves = false;
  for (size_t b = 0; b < in.cond.size(); ++b) {
    const auto motion = in.cond[b]->find(kMotionRows);
    if (motion == in.cond[b]->end()) continue;
    if (motion->second.sizes() != projected.sizes().slice(1) || rows.size() != in.cond.size()) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           "motion_rows of shape " + atelier::shape_text(motion->second) + ", [" +
                               std::to_string(projected.size(1)) + "] expected",
                           "pass the motion controller that is published with the DiT");
    }
    rows[b] = rows[b] + motion->second.to(projected.scalar_type());
    moves = true;
  }
  return moves ? at::stack(rows) : projected;
}

at::Tensor Dit::denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  const at::Tensor& x = in.x_BCTHW;
  const int64_t B = x.size(0), C = x.size(1), T = x.size(2), p = config_.patch;
  const int64_t H = x.size(3) / p, W = x.size(4) / p;
  const SharedRows rows(Segments::uniform(B, T * H * W));
  const Segments text_rows = Segments::uniform(B, kTextRows);
  const auto& rope =
      ropes_.get({T, H, W, B, x.device()}, [&] { return make_rope(T, H, W, B, x.device()); });
  const at::Tensor text = embed_text(in, x.scalar_type());
  const Levels levels = levels_of(in, T, H * W);
  const Segments level_rows = rows.cut(levels.rows);
  const at::Tensor time = embed_time(levels.sigma_S);
  const at::Tensor projected = with_motion(in, time_projection_.forward(at::silu(time)));

  Tensors context = {rows.take(rope.cos), rows.take(rope.sin), rows.rows().tensor(),
                     level_rows.tensor(), projected,           text,
                     text_rows.tensor()};
  if (image_embedding_) {
    const atelier::PackedRows images = atelier::pack_entry(in.cond, kImageEmbeds);
    context.push_back(image_embedding_->forward(images, x.scalar_type()));
    context.push_back(images.rows.tensor());
  }

  at::Tensor clip = rows.take(patch_embedding_.forward(with_given(in))
                                  .permute({0, 2, 3, 4, 1})
                                  .reshape({B * T * H * W, -1}));
  for (const auto& block : blocks_) {
    Tensors inputs = {std::move(clip)};
    inputs.insert(inputs.end(), context.begin(), context.end());
    clip = runner.run(*block, inputs)[0];
  }

  const std::vector<at::Tensor> m = (head_modulation_->draw() + time.unsqueeze(1)).unbind(1);
  // Values of a token: its rows, its columns, then channels.
  return rows
      .gather(head_.forward(ops::norm_modulate(clip, m[0], m[1], level_rows, config_.norm_eps)))
      .view({B, T, H, W, p, p, C})
      .permute({0, 6, 1, 2, 4, 3, 5})
      .reshape({B, C, T, H * p, W * p});
}

}  // namespace wan
