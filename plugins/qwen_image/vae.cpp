// Shape letters: B pictures, C channels, H and W height and width.
#include "vae.h"

#include <ATen/ATen.h>

#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace qwen_image {

using atelier::Block;
using atelier::Tensors;
using atelier::nn::Module;
namespace ops = atelier::ops;

namespace {

// norm, SiLU, convolution, twice, and the way around them. Input and output: [B, C, H, W].
class ResBlock final : public Block {
 public:
  ResBlock(Module* parent, std::string name, int64_t in, int64_t out)
      : Block(parent, std::move(name)),
        norm1_(this, "norm1", in),
        conv1_(this, "conv1", in, out, 3, 3),
        norm2_(this, "norm2", out),
        conv2_(this, "conv2", out, out, 3, 3) {
    if (in != out) shortcut_ = std::make_unique<Conv>(this, "conv_shortcut", in, out, 1, 1);
  }

  std::string_view kind() const override { return shortcut_ ? "vae.res_shortcut" : "vae.res"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor around = shortcut_ ? shortcut_->forward(in[0]) : in[0];
    const at::Tensor h = conv1_.forward(norm1_.forward(in[0], /*silu=*/true));
    return {around + conv2_.forward(norm2_.forward(h, /*silu=*/true))};
  }

 private:
  ChannelNorm norm1_;
  Conv conv1_;
  ChannelNorm norm2_;
  Conv conv2_;
  std::unique_ptr<Conv> shortcut_;
};

// One head over all cells of a picture. Input and output: [B, C, H, W].
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
    const at::Tensor out =
        ops::attention(qkv.narrow(1, 0, 1), qkv.narrow(1, 1, 1), qkv.narrow(1, 2, 1),
                       atelier::Segments::uniform(B, H * W));
    return {x + proj_.forward(out.view({B, H, W, C}).permute({0, 3, 1, 2}))};
  }

 private:
  ChannelNorm norm_;
  Conv to_qkv_, proj_;
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
  Conv conv_;
  atelier::WeightPtr time_conv_weight_, time_conv_bias_;
};

// float64 stays, everything else is computed with in float32.
at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor per_channel(const std::vector<double>& values, const at::Tensor& like) {
  return at::tensor(values, at::kDouble).to(like.options()).view({1, -1, 1, 1});
}

}  // namespace

Conv::Conv(Module* parent, std::string name, int64_t in, int64_t out, int64_t kt, int64_t k,
           int64_t stride)
    : Module(parent, std::move(name)),
      weight(declare("weight", kt ? std::vector<int64_t>{out, in, kt, k, k}
                                  : std::vector<int64_t>{out, in, k, k})),
      bias(declare("bias", {out})),
      options_{.stride = stride, .padding = stride == 1 ? k / 2 : 0} {}
Conv::~Conv() = default;

at::Tensor Conv::forward(const at::Tensor& x) const {
  return ops::conv2d(x, weight, bias, options_);
}

ChannelNorm::ChannelNorm(Module* parent, std::string name, int64_t channels, bool temporal)
    : Module(parent, std::move(name)),
      gamma(declare("gamma", temporal ? std::vector<int64_t>{channels, 1, 1, 1}
                                      : std::vector<int64_t>{channels, 1, 1})) {}
ChannelNorm::~ChannelNorm() = default;

at::Tensor ChannelNorm::forward(const at::Tensor& x, bool silu) const {
  return ops::channel_norm(x, gamma->draw().view({-1}), silu);
}

VaeHalf::VaeHalf(Module* parent, std::string name, const VaeConfig& c, bool encoder)
    : Module(parent, std::move(name)),
      conv_in_(this, "conv_in", encoder ? 3 : c.channels, encoder ? c.base_width : c.widths.back(),
               3, 3),
      norm_out_(this, "norm_out", encoder ? c.widths.back() : c.widths.front()),
      conv_out_(this, "conv_out", encoder ? c.widths.back() : c.widths.front(),
                encoder ? 2 * c.channels : 3, 3, 3) {
  const int64_t levels = std::ssize(c.widths), deepest = c.widths.back();
  const auto res = [&](const std::string& block, int64_t in, int64_t out) {
    blocks_.push_back(std::make_unique<ResBlock>(this, block, in, out));
  };
  const auto middle = [&] {
    res("mid_block.resnets.0", deepest, deepest);
    blocks_.push_back(std::make_unique<AttentionBlock>(this, "mid_block.attentions.0", deepest));
    res("mid_block.resnets.1", deepest, deepest);
  };
  if (encoder) {
    int64_t width = c.base_width, n = 0;
    const auto next = [&] { return "down_blocks." + std::to_string(n++); };
    for (int64_t i = 0; i < levels; ++i) {
      for (int64_t j = 0; j < c.res_blocks; ++j) {
        res(next(), width, c.widths[i]);
        width = c.widths[i];
      }
      if (i + 1 < levels) {
        blocks_.push_back(
            std::make_unique<Resample>(this, next(), width, /*down=*/true, c.temporal[i]));
      }
    }
    middle();
    return;
  }
  middle();
  int64_t width = deepest;
  for (int64_t i = 0; i < levels; ++i) {
    const int64_t level = levels - 1 - i;
    const std::string stem = "up_blocks." + std::to_string(i);
    for (int64_t j = 0; j <= c.res_blocks; ++j) {
      res(stem + ".resnets." + std::to_string(j), width, c.widths[level]);
      width = c.widths[level];
    }
    if (level > 0) {
      blocks_.push_back(std::make_unique<Resample>(this, stem + ".upsamplers.0", width,
                                                   /*down=*/false, c.temporal[level - 1]));
      width /= 2;
    }
  }
}
VaeHalf::~VaeHalf() = default;

at::Tensor VaeHalf::forward(const at::Tensor& x, atelier::BlockRunner& runner) const {
  at::Tensor h = conv_in_.forward(x);
  for (const auto& block : blocks_) h = runner.run(*block, {h})[0];
  return conv_out_.forward(norm_out_.forward(h, /*silu=*/true));
}

std::vector<Block*> VaeHalf::blocks() const {
  std::vector<Block*> result;
  for (const auto& block : blocks_) result.push_back(block.get());
  return result;
}

Vae::Vae(const VaeConfig& c)
    : Module(nullptr, "vae"),
      config_(c),
      encoder_(this, "encoder", c, /*encoder=*/true),
      quant_conv_(this, "quant_conv", 2 * c.channels, 2 * c.channels, 1, 1),
      post_quant_conv_(this, "post_quant_conv", c.channels, c.channels, 1, 1),
      decoder_(this, "decoder", c, /*encoder=*/false) {}
Vae::~Vae() = default;

std::vector<Block*> Vae::blocks() const {
  std::vector<Block*> result = encoder_.blocks();
  const std::vector<Block*> rest = decoder_.blocks();
  result.insert(result.end(), rest.begin(), rest.end());
  return result;
}

at::Tensor Vae::encode(const at::Tensor& image_BCHW, atelier::BlockRunner& runner) const {
  const at::ScalarType dtype = encoder_.dtype();
  const at::Tensor x =
      image_BCHW.to(encoder_.device(), dtype).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor moments = quant_conv_.forward(encoder_.forward(x, runner));
  const at::Tensor mean = moments.narrow(1, 0, config_.channels).to(wide(dtype));
  return ((mean - per_channel(config_.mean, mean)) / per_channel(config_.std, mean))
      .to(dtype)
      .contiguous();
}

at::Tensor Vae::decode(const at::Tensor& latents_BCHW, atelier::BlockRunner& runner) const {
  const at::ScalarType dtype = decoder_.dtype();
  const at::Tensor z = latents_BCHW.to(decoder_.device(), wide(dtype));
  const at::Tensor x = (z * per_channel(config_.std, z) + per_channel(config_.mean, z)).to(dtype);
  const at::Tensor y = decoder_.forward(
      post_quant_conv_.forward(x.contiguous(at::MemoryFormat::ChannelsLast)), runner);
  return at::clamp(y, -1.0, 1.0).to(at::kFloat).contiguous();
}

}  // namespace qwen_image
