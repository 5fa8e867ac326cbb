// Shape letters: B images, C channels, H and W height and width.
#include "atelier/parts/autoencoder_kl.h"

#include <ATen/ATen.h>

#include "atelier/ops/attention.h"
#include "atelier/ops/conv.h"
#include "atelier/ops/linear.h"
#include "atelier/ops/pointwise.h"

namespace atelier::parts {

using nn::Conv2d;
using nn::GroupNorm;
using nn::Module;

namespace {

// norm, SiLU, convolution, twice, and the way around them. Input and output: [B, C, H, W].
class ResBlock final : public Block {
 public:
  ResBlock(Module* parent, std::string name, int64_t in, int64_t out, int64_t groups)
      : Block(parent, std::move(name)),
        norm1_(this, "norm1", in, groups),
        conv1_(this, "conv1", in, out, 3, {.padding = 1}),
        norm2_(this, "norm2", out, groups),
        conv2_(this, "conv2", out, out, 3, {.padding = 1}) {
    if (in != out) shortcut_ = std::make_unique<Conv2d>(this, "conv_shortcut", in, out, 1);
  }

  std::string_view kind() const override { return shortcut_ ? "vae.res_shortcut" : "vae.res"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor around = shortcut_ ? shortcut_->forward(in[0]) : in[0];
    const at::Tensor h = conv1_.forward(norm1_.forward(in[0], /*silu=*/true));
    return {around + conv2_.forward(norm2_.forward(h, /*silu=*/true))};
  }

 private:
  GroupNorm norm1_;
  Conv2d conv1_;
  GroupNorm norm2_;
  Conv2d conv2_;
  std::unique_ptr<Conv2d> shortcut_;
};

// A product over channels, whose weight is [C, C] or [C, C, 1, 1].
class Projection final : public Module {
 public:
  Projection(Module* parent, std::string name, int64_t width, bool conv)
      : Module(parent, std::move(name)),
        weight_(declare("weight", conv ? std::vector<int64_t>{width, width, 1, 1}
                                       : std::vector<int64_t>{width, width})),
        bias_(declare("bias", {width})) {}
  ~Projection() override = default;

  // x: [B, H, W, C].
  at::Tensor forward(const at::Tensor& x) const {
    if (weight_->sizes().size() == 2) return ops::linear(x, weight_, bias_);
    return ops::conv2d(x.permute({0, 3, 1, 2}), weight_, bias_, {}).permute({0, 2, 3, 1});
  }

 private:
  WeightPtr weight_, bias_;
};

// One head over all cells of an image. Input and output: [B, C, H, W].
class AttentionBlock final : public Block {
 public:
  AttentionBlock(Module* parent, std::string name, int64_t width, const AutoencoderKLConfig& c)
      : Block(parent, std::move(name)),
        norm_(this, "group_norm", width, c.groups),
        q_(this, "to_q", width, c.conv_attention),
        k_(this, "to_k", width, c.conv_attention),
        v_(this, "to_v", width, c.conv_attention),
        out_(this, "to_out.0", width, c.conv_attention) {}

  std::string_view kind() const override { return "vae.attention"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor& x = in[0];
    const int64_t B = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    const at::Tensor h = norm_.forward(x, /*silu=*/false).permute({0, 2, 3, 1}).contiguous();
    const auto rows = [&](const Projection& layer) {
      return layer.forward(h).reshape({B * H * W, 1, C});
    };
    const at::Tensor out =
        ops::attention(rows(q_), rows(k_), rows(v_), Segments::uniform(B, H * W));
    return {x + out_.forward(out.view({B, H, W, C})).permute({0, 3, 1, 2})};
  }

 private:
  GroupNorm norm_;
  Projection q_, k_, v_, out_;
};

// Halves or doubles height and width.
class Resample final : public Block {
 public:
  Resample(Module* parent, std::string name, int64_t width, bool down)
      : Block(parent, std::move(name)),
        down_(down),
        conv_(this, "conv", width, width, 3, {.stride = down ? 2 : 1, .padding = down ? 0 : 1}) {}

  std::string_view kind() const override { return down_ ? "vae.down" : "vae.up"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor& x = in[0];
    if (down_) return {conv_.forward(at::constant_pad_nd(x, {0, 1, 0, 1}))};
    return {conv_.forward(at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)}))};
  }

 private:
  bool down_;
  Conv2d conv_;
};

// float64 stays, everything else is computed with in float32.
at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

// What encoder and decoder share: a convolution, a stack of blocks, norm and convolution.
class AutoencoderKLHalf final : public Module {
 public:
  AutoencoderKLHalf(Module* parent, std::string name, const AutoencoderKLConfig& c, bool encoder)
      : Module(parent, std::move(name)),
        conv_in_(this, "conv_in", encoder ? 3 : c.channels,
                 encoder ? c.widths.front() : c.widths.back(), 3, {.padding = 1}),
        conv_out_(this, "conv_out", encoder ? c.widths.back() : c.widths.front(),
                  encoder ? 2 * c.channels : 3, 3, {.padding = 1}),
        norm_out_(this, "conv_norm_out", encoder ? c.widths.back() : c.widths.front(), c.groups) {
    if (encoder) {
      add_down(c);
      add_middle(c);
    } else {
      add_middle(c);
      add_up(c);
    }
  }
  ~AutoencoderKLHalf() override = default;

  // x: [B, C, H, W], channels-last.
  at::Tensor forward(const at::Tensor& x, BlockRunner& runner) const {
    at::Tensor h = conv_in_.forward(x);
    for (const auto& block : blocks_) h = runner.run(*block, {h})[0];
    return conv_out_.forward(norm_out_.forward(h, /*silu=*/true));
  }

  at::TensorOptions options() const { return conv_in_.weight->draw().options(); }

 private:
  void add_res(const std::string& name, int64_t in, int64_t out, const AutoencoderKLConfig& c) {
    blocks_.push_back(std::make_unique<ResBlock>(this, name, in, out, c.groups));
  }
  void add_attention(const std::string& name, int64_t width, const AutoencoderKLConfig& c) {
    blocks_.push_back(std::make_unique<AttentionBlock>(this, name, width, c));
  }
  void add_middle(const AutoencoderKLConfig& c) {
    const int64_t width = c.widths.back();
    add_res("mid_block.resnets.0", width, width, c);
    if (c.mid_attention) add_attention("mid_block.attentions.0", width, c);
    add_res("mid_block.resnets.1", width, width, c);
  }
  void add_down(const AutoencoderKLConfig& c) {
    int64_t width = c.widths.front();
    for (size_t i = 0; i < c.widths.size(); ++i) {
      const std::string level = "down_blocks." + std::to_string(i);
      for (int64_t j = 0; j < c.res_blocks; ++j) {
        add_res(level + ".resnets." + std::to_string(j), width, c.widths[i], c);
        width = c.widths[i];
        if (!c.down_attention.empty() && c.down_attention[i])
          add_attention(level + ".attentions." + std::to_string(j), width, c);
      }
      if (i + 1 == c.widths.size()) break;
      blocks_.push_back(
          std::make_unique<Resample>(this, level + ".downsamplers.0", width, /*down=*/true));
    }
  }
  void add_up(const AutoencoderKLConfig& c) {
    int64_t width = c.widths.back();
    for (size_t i = 0; i < c.widths.size(); ++i) {
      const std::string level = "up_blocks." + std::to_string(i);
      const int64_t out = c.widths[c.widths.size() - 1 - i];
      for (int64_t j = 0; j <= c.res_blocks; ++j) {
        add_res(level + ".resnets." + std::to_string(j), width, out, c);
        width = out;
        if (!c.up_attention.empty() && c.up_attention[i])
          add_attention(level + ".attentions." + std::to_string(j), width, c);
      }
      if (i + 1 == c.widths.size()) break;
      blocks_.push_back(
          std::make_unique<Resample>(this, level + ".upsamplers.0", width, /*down=*/false));
    }
  }

  Conv2d conv_in_, conv_out_;
  GroupNorm norm_out_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

AutoencoderKL::AutoencoderKL(const AutoencoderKLConfig& c)
    : Autoencoder(nullptr, "vae"),
      config_(c),
      encoder_(std::make_unique<AutoencoderKLHalf>(this, "encoder", c, /*encoder=*/true)),
      decoder_(std::make_unique<AutoencoderKLHalf>(this, "decoder", c, /*encoder=*/false)) {
  if (c.quant_conv)
    quant_conv_ = std::make_unique<Conv2d>(this, "quant_conv", 2 * c.channels, 2 * c.channels, 1);
  if (c.post_quant_conv)
    post_quant_conv_ = std::make_unique<Conv2d>(this, "post_quant_conv", c.channels, c.channels, 1);
}
AutoencoderKL::~AutoencoderKL() = default;

at::Tensor AutoencoderKL::encode(const at::Tensor& pixels_BCTHW, BlockRunner& runner) const {
  const at::TensorOptions options = encoder_->options();
  const at::ScalarType dtype = options.dtype().toScalarType();
  const at::Tensor x = pixels_BCTHW.select(2, 0)
                           .to(options.device(), dtype)
                           .contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor moments = encoder_->forward(x, runner);
  if (quant_conv_) moments = quant_conv_->forward(moments);
  const at::Tensor mean = moments.narrow(1, 0, config_.channels).to(wide(dtype));
  return ((mean - config_.shift) * config_.scale).to(dtype).contiguous().unsqueeze(2);
}

void AutoencoderKL::decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
                           const FrameSink& sink) const {
  const at::TensorOptions options = decoder_->options();
  const at::ScalarType dtype = options.dtype().toScalarType();
  const at::Tensor z = latents_BCTHW.select(2, 0).to(options.device(), wide(dtype));
  at::Tensor x =
      (z / config_.scale + config_.shift).to(dtype).contiguous(at::MemoryFormat::ChannelsLast);
  if (post_quant_conv_) x = post_quant_conv_->forward(x);
  const at::Tensor y = decoder_->forward(x, runner);
  sink(at::clamp(y, -1.0, 1.0).to(at::kFloat).contiguous().unsqueeze(2));
}

}  // namespace atelier::parts
