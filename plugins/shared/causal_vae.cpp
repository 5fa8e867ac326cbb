// Shape letters: B images, C channels, H and W height and width.
#include "shared/causal_vae.h"

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/conv.h"
#include "atelier/ops/pointwise.h"

namespace atelier::shared {

using nn::Module;

// A convolution with weight [out, in, kt, k, k] or, without kt, [out, in, k, k].
class CausalConv final : public Module {
 public:
  // `kt` 0: the weight has no temporal axis.
  CausalConv(Module* parent, std::string name, int64_t in, int64_t out, int64_t kt, int64_t k,
             int64_t stride = 1)
      : Module(parent, std::move(name)),
        weight(declare("weight", kt ? std::vector<int64_t>{out, in, kt, k, k}
                                    : std::vector<int64_t>{out, in, k, k})),
        bias_(declare("bias", {out})),
        options_{.stride = stride, .padding = stride == 1 ? k / 2 : 0} {}
  ~CausalConv() override = default;

  // x: [B, in, H, W]. Zeros are put around a 3 x 3 kernel of stride 1 alone.
  at::Tensor forward(const at::Tensor& x) const { return ops::conv2d(x, weight, bias_, options_); }

  WeightPtr weight;

 private:
  WeightPtr bias_;
  ops::ConvOptions options_;
};

namespace {

// Norm over channels. Weight "gamma": [C, 1, 1, 1], or [C, 1, 1] in attention.
class ChannelNorm final : public Module {
 public:
  ChannelNorm(Module* parent, std::string name, int64_t channels, bool temporal = true)
      : Module(parent, std::move(name)),
        gamma_(declare("gamma", temporal ? std::vector<int64_t>{channels, 1, 1, 1}
                                         : std::vector<int64_t>{channels, 1, 1})) {}
  ~ChannelNorm() override = default;

  at::Tensor forward(const at::Tensor& x, bool silu) const {
    return ops::channel_norm(x, gamma_->draw().view({-1}), silu);
  }

 private:
  WeightPtr gamma_;
};

// Norm, SiLU and convolution, twice, and a residual connection. Input and output: [B, C, H, W].
class ResBlock final : public Block {
 public:
  ResBlock(Module* parent, std::string name, int64_t in, int64_t out)
      : Block(parent, std::move(name)),
        norm1_(this, "norm1", in),
        conv1_(this, "conv1", in, out, 3, 3),
        norm2_(this, "norm2", out),
        conv2_(this, "conv2", out, out, 3, 3) {
    if (in != out) shortcut_ = std::make_unique<CausalConv>(this, "conv_shortcut", in, out, 1, 1);
  }

  std::string_view kind() const override { return shortcut_ ? "vae.res_shortcut" : "vae.res"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor around = shortcut_ ? shortcut_->forward(in[0]) : in[0];
    const at::Tensor h = conv1_.forward(norm1_.forward(in[0], /*silu=*/true));
    return {around + conv2_.forward(norm2_.forward(h, /*silu=*/true))};
  }

 private:
  ChannelNorm norm1_;
  CausalConv conv1_;
  ChannelNorm norm2_;
  CausalConv conv2_;
  std::unique_ptr<CausalConv> shortcut_;
};

// One head over all cells of an image. Input and output: [B, C, H, W].
class AttentionBlock final : public Block {
 public:
  AttentionBlock(Module* parent, std::string name, int64_t width)
      : Block(parent, std::move(name)),
        norm_(this, "norm", width, /*temporal=*/false),
        to_qkv_(this, "to_qkv", width, 3 * width, 0, 1),
        proj_(this, "proj", width, width, 0, 1) {}

  std::string_view kind() const override { return "vae.attention"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor& x = in[0];
    const int64_t B = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    const at::Tensor qkv = to_qkv_.forward(norm_.forward(x, /*silu=*/false))
                               .permute({0, 2, 3, 1})
                               .reshape({B * H * W, 3, C});
    const at::Tensor out = ops::attention(qkv.narrow(1, 0, 1), qkv.narrow(1, 1, 1),
                                          qkv.narrow(1, 2, 1), Segments::uniform(B, H * W));
    return {x + proj_.forward(out.view({B, H, W, C}).permute({0, 3, 1, 2}))};
  }

 private:
  ChannelNorm norm_;
  CausalConv to_qkv_, proj_;
};

// Halves or doubles height and width. "time_conv" works between frames, so a single frame does not
// read it.
class Resample final : public Block {
 public:
  Resample(Module* parent, std::string name, int64_t width, bool down, bool temporal)
      : Block(parent, std::move(name)),
        down_(down),
        conv_(this, "resample.1", width, down ? width : width / 2, 0, 3, down ? 2 : 1) {
    if (temporal) {
      time_conv_weight_ = declare("time_conv.weight", {down ? width : 2 * width, width, 3, 1, 1});
      time_conv_bias_ = declare("time_conv.bias", {down ? width : 2 * width});
    }
  }

  std::string_view kind() const override { return down_ ? "vae.down" : "vae.up"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor& x = in[0];
    if (down_) return {conv_.forward(at::constant_pad_nd(x, {0, 1, 0, 1}))};
    return {conv_.forward(at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)}))};
  }

 private:
  bool down_;
  CausalConv conv_;
  WeightPtr time_conv_weight_, time_conv_bias_;
};

// float64 stays, everything else is computed with in float32.
at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// [B, C, 1, H, W] to [B, C, H, W].
at::Tensor single_frame(const at::Tensor& x_BCTHW) {
  if (x_BCTHW.size(2) == 1) return x_BCTHW.select(2, 0);
  throw Error(ErrorCode::kUnsupported,
              std::to_string(x_BCTHW.size(2)) + " frames: this autoencoder takes images so far",
              "give one frame");
}

at::Tensor per_channel(const std::vector<double>& values, const at::Tensor& like) {
  return at::tensor(values, at::kDouble).to(like.options()).view({1, -1, 1, 1});
}

}  // namespace

// What encoder and decoder share: a convolution, a stack of blocks, norm and convolution.
class CausalVaeHalf final : public Module {
 public:
  CausalVaeHalf(Module* parent, std::string name, const CausalVaeConfig& c, bool encoder)
      : Module(parent, std::move(name)),
        conv_in_(this, "conv_in", encoder ? 3 : c.channels,
                 encoder ? c.base_width : c.widths.back(), 3, 3),
        norm_out_(this, "norm_out", encoder ? c.widths.back() : c.widths.front()),
        conv_out_(this, "conv_out", encoder ? c.widths.back() : c.widths.front(),
                  encoder ? 2 * c.channels : 3, 3, 3) {
    if (encoder) {
      add_down(c);
      add_middle(c);
    } else {
      add_middle(c);
      add_up(c);
    }
  }
  ~CausalVaeHalf() override = default;

  // x: [B, C, H, W], channels-last.
  at::Tensor forward(const at::Tensor& x, BlockRunner& runner) const {
    at::Tensor h = conv_in_.forward(x);
    for (const auto& block : blocks_) h = runner.run(*block, {h})[0];
    return conv_out_.forward(norm_out_.forward(h, /*silu=*/true));
  }

  at::TensorOptions options() const { return conv_in_.weight->draw().options(); }

 private:
  void add_res(const std::string& block, int64_t in, int64_t out) {
    blocks_.push_back(std::make_unique<ResBlock>(this, block, in, out));
  }
  void add_middle(const CausalVaeConfig& c) {
    const int64_t width = c.widths.back();
    add_res("mid_block.resnets.0", width, width);
    blocks_.push_back(std::make_unique<AttentionBlock>(this, "mid_block.attentions.0", width));
    add_res("mid_block.resnets.1", width, width);
  }
  void add_down(const CausalVaeConfig& c) {
    int64_t width = c.base_width, n = 0;
    const auto next = [&] { return "down_blocks." + std::to_string(n++); };
    for (size_t i = 0; i < c.widths.size(); ++i) {
      for (int64_t j = 0; j < c.res_blocks; ++j) {
        add_res(next(), width, c.widths[i]);
        width = c.widths[i];
      }
      if (i + 1 == c.widths.size()) break;
      blocks_.push_back(
          std::make_unique<Resample>(this, next(), width, /*down=*/true, c.temporal[i]));
    }
  }
  void add_up(const CausalVaeConfig& c) {
    int64_t width = c.widths.back();
    for (size_t i = 0; i < c.widths.size(); ++i) {
      const size_t level = c.widths.size() - 1 - i;
      const std::string stem = "up_blocks." + std::to_string(i);
      for (int64_t j = 0; j <= c.res_blocks; ++j) {
        add_res(stem + ".resnets." + std::to_string(j), width, c.widths[level]);
        width = c.widths[level];
      }
      if (level == 0) break;
      blocks_.push_back(std::make_unique<Resample>(this, stem + ".upsamplers.0", width,
                                                   /*down=*/false, c.temporal[level - 1]));
      width /= 2;
    }
  }

  CausalConv conv_in_;
  std::vector<std::unique_ptr<Block>> blocks_;
  ChannelNorm norm_out_;
  CausalConv conv_out_;
};

CausalVae::CausalVae(const CausalVaeConfig& c)
    : Autoencoder(nullptr, "vae"),
      config_(c),
      encoder_(std::make_unique<CausalVaeHalf>(this, "encoder", c, /*encoder=*/true)),
      quant_conv_(
          std::make_unique<CausalConv>(this, "quant_conv", 2 * c.channels, 2 * c.channels, 1, 1)),
      post_quant_conv_(
          std::make_unique<CausalConv>(this, "post_quant_conv", c.channels, c.channels, 1, 1)),
      decoder_(std::make_unique<CausalVaeHalf>(this, "decoder", c, /*encoder=*/false)) {}
CausalVae::~CausalVae() = default;

at::Tensor CausalVae::encode(const at::Tensor& pixels_BCTHW, BlockRunner& runner) const {
  const at::TensorOptions options = encoder_->options();
  const at::ScalarType dtype = options.dtype().toScalarType();
  const at::Tensor x = single_frame(pixels_BCTHW)
                           .to(options.device(), dtype)
                           .contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor moments = quant_conv_->forward(encoder_->forward(x, runner));
  const at::Tensor mean = moments.narrow(1, 0, config_.channels).to(wide(dtype));
  return ((mean - per_channel(config_.mean, mean)) / per_channel(config_.std, mean))
      .to(dtype)
      .contiguous()
      .unsqueeze(2);
}

void CausalVae::decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
                       const FrameSink& sink) const {
  const at::TensorOptions options = decoder_->options();
  const at::ScalarType dtype = options.dtype().toScalarType();
  const at::Tensor z = single_frame(latents_BCTHW).to(options.device(), wide(dtype));
  const at::Tensor x = (z * per_channel(config_.std, z) + per_channel(config_.mean, z)).to(dtype);
  const at::Tensor y = decoder_->forward(
      post_quant_conv_->forward(x.contiguous(at::MemoryFormat::ChannelsLast)), runner);
  sink(at::clamp(y, -1.0, 1.0).to(at::kFloat).contiguous().unsqueeze(2));
}

}  // namespace atelier::shared
