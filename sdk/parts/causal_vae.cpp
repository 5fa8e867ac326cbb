// Shape letters: B clips, C channels, T frames, H and W height and width, F frames of all clips:
// those of a clip stand together. What works within a frame sees [F, C, H, W].
#include "atelier/parts/causal_vae.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/nn/layers.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/conv.h"
#include "atelier/ops/pointwise.h"

namespace atelier::parts {

using nn::Module;

namespace {

// [F, C, H, W] to [B, C, T, H, W] and back, without a copy where channels are last.
at::Tensor as_clips(const at::Tensor& x_FCHW, int64_t B) {
  return x_FCHW.unflatten(0, {B, x_FCHW.size(0) / B}).transpose(1, 2);
}
at::Tensor as_frames(const at::Tensor& x_BCTHW) {
  return x_BCTHW.transpose(1, 2).flatten(0, 1);
}

// Patches of p x p pixels become channels, and back: those of a channel stand together, a column of
// the patch behind the other.
at::Tensor as_patches(const at::Tensor& x_FCHW, int64_t p) {
  if (p == 1) return x_FCHW;
  const int64_t F = x_FCHW.size(0), C = x_FCHW.size(1), H = x_FCHW.size(2), W = x_FCHW.size(3);
  return x_FCHW.reshape({F, C, H / p, p, W / p, p})
      .permute({0, 1, 5, 3, 2, 4})
      .reshape({F, C * p * p, H / p, W / p});
}
at::Tensor as_pixels(const at::Tensor& x_FCHW, int64_t p) {
  if (p == 1) return x_FCHW;
  const int64_t F = x_FCHW.size(0), C = x_FCHW.size(1), H = x_FCHW.size(2), W = x_FCHW.size(3);
  return x_FCHW.reshape({F, C / (p * p), p, p, H, W})
      .permute({0, 1, 4, 3, 5, 2})
      .reshape({F, C / (p * p), H * p, W * p});
}

// What goes around a level, from its blocks' input to their output: a mean over cells and channels
// going down, copies going up. Nothing is learnt. Time is in front of height and width.
struct Shortcut {
  size_t first = 0, last = 0;    // the level's blocks
  int64_t channels = 0;          // behind it
  int64_t frames = 1, side = 1;  // which become one going down, or which one becomes going up
  bool is_up = false;

  // x: [F, C, H, W]. `begins`: images, or the first piece of each clip: a frame each.
  at::Tensor forward(const at::Tensor& x, bool begins) const {
    return is_up ? copies(x, begins) : means(x, begins);
  }

 private:
  // The first frame of a clip stands for several, the ones before which are zero.
  at::Tensor means(const at::Tensor& x, bool begins) const {
    const int64_t C = x.size(1), H = x.size(2), W = x.size(3), t = frames, s = side;
    at::Tensor joined = begins ? x.unsqueeze(1) : x.unflatten(0, {x.size(0) / t, t});
    if (begins) joined = at::constant_pad_nd(joined, {0, 0, 0, 0, 0, 0, t - 1, 0});
    const int64_t F = joined.size(0);
    return joined.reshape({F, t, C, H / s, s, W / s, s})
        .permute({0, 2, 1, 4, 6, 3, 5})
        .reshape({F, channels, C * t * s * s / channels, H / s, W / s})
        .mean(2);
  }

  // The first frame of a clip stays one: the last of its copies.
  at::Tensor copies(const at::Tensor& x, bool begins) const {
    const int64_t F = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3), t = frames, s = side;
    at::Tensor copied = x.repeat_interleave(channels * t * s * s / C, 1)
                            .view({F, channels, t, s, s, H, W})
                            .permute({0, 2, 1, 5, 3, 6, 4});
    if (begins) copied = copied.narrow(1, t - 1, 1);
    return copied.reshape({-1, channels, H * s, W * s});
  }
};

}  // namespace

// What a convolution over time needs of the frames before: the last ones, [B, C, n, H, W]. A clip
// comes in pieces, the first of which is its first frame. A block is given what the piece before
// left, and gives what the next one needs.
struct History {
  enum class At { kNone, kFirst, kLater };  // an image alone, a clip's first piece, a later one

  At at;
  at::Tensor frames;

  // As a block is given it: undefined, no frames, or frames.
  explicit History(const at::Tensor& given)
      : at(!given.defined()     ? At::kNone
           : given.numel() == 0 ? At::kFirst
                                : At::kLater),
        frames(given) {}

  // The piece behind what was before it, of which the last `count` frames stay.
  at::Tensor join(const at::Tensor& x_FCHW, int64_t count) {
    const at::Tensor joined = at::cat({frames, as_clips(x_FCHW, frames.size(0))}, 2);
    frames = joined.narrow(2, joined.size(2) - count, count).clone();
    return joined;
  }
};

// Puts `next` in place of what a clip's piece before left: in its memory, where no gradient reads
// that. Histories that moved with every piece would leave the heap in holes.
static void replace(at::Tensor& history, at::Tensor next) {
  if (at::GradMode::is_enabled() || history.sizes() != next.sizes()) {
    history = std::move(next);
  } else {
    history.copy_(next);
  }
}

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

  // x: [F, in, H, W], each frame by itself, of which a kernel with a temporal axis has its last
  // slice. Zeros are put around a 3 x 3 kernel of stride 1 alone.
  at::Tensor forward(const at::Tensor& x) const { return ops::conv2d(x, weight, bias_, options_); }

  // The frames of a clip behind those of `past`, which becomes that of the next piece.
  at::Tensor forward(at::Tensor x, History& past) const;

  WeightPtr weight;

 private:
  WeightPtr bias_;
  ops::ConvOptions options_;
};

at::Tensor CausalConv::forward(at::Tensor x, History& past) const {
  if (past.at == History::At::kNone) return forward(x);
  if (past.at == History::At::kFirst) {
    const at::Tensor first = x.unsqueeze(2);
    past.frames = at::cat({at::zeros_like(first), first}, 2);
    return forward(x);
  }
  const at::Tensor joined = past.join(x, weight->sizes()[2] - 1);
  x.reset();  // the caller's may be the only other one
  const int64_t pad = options_.padding;
  return as_frames(ops::conv3d(joined, weight, bias_, {.padding = {0, pad, pad}}));
}

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

// A block of the autoencoder. Inputs: frames [F, C, H, W], and of clips the histories of its
// convolutions over time. Output: frames, and the histories for the next piece.
class FrameBlock : public Block {
 public:
  using Block::Block;
  virtual size_t histories() const { return 0; }
};

// Norm, SiLU and convolution, twice, and a residual connection.
class ResBlock final : public FrameBlock {
 public:
  ResBlock(Module* parent, std::string name, int64_t in, int64_t out)
      : FrameBlock(parent, std::move(name)),
        norm1_(this, "norm1", in),
        conv1_(this, "conv1", in, out, 3, 3),
        norm2_(this, "norm2", out),
        conv2_(this, "conv2", out, out, 3, 3) {
    if (in != out) shortcut_ = std::make_unique<CausalConv>(this, "conv_shortcut", in, out, 1, 1);
  }

  std::string_view kind() const override { return shortcut_ ? "vae.res_shortcut" : "vae.res"; }
  size_t histories() const override { return 2; }

  Tensors forward(const Tensors& in) override {
    History past1(in.size() > 1 ? in[1] : at::Tensor()),
        past2(in.size() > 1 ? in[2] : at::Tensor());
    const at::Tensor around = shortcut_ ? shortcut_->forward(in[0]) : in[0];
    const at::Tensor h = conv1_.forward(norm1_.forward(in[0], /*silu=*/true), past1);
    const at::Tensor out = around + conv2_.forward(norm2_.forward(h, /*silu=*/true), past2);
    if (in.size() == 1) return {out};
    return {out, past1.frames, past2.frames};
  }

 private:
  ChannelNorm norm1_;
  CausalConv conv1_;
  ChannelNorm norm2_;
  CausalConv conv2_;
  std::unique_ptr<CausalConv> shortcut_;
};

// One head over all cells of a frame.
class AttentionBlock final : public FrameBlock {
 public:
  AttentionBlock(Module* parent, std::string name, int64_t width)
      : FrameBlock(parent, std::move(name)),
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

// Halves or doubles height and width, and with "time_conv" the frames of a clip but its first.
class Resample final : public FrameBlock {
 public:
  Resample(Module* parent, std::string name, int64_t width, int64_t out, bool down, bool temporal)
      : FrameBlock(parent, std::move(name)),
        down_(down),
        conv_(this, "resample.1", width, out, 0, 3, down ? 2 : 1) {
    if (temporal) {
      time_conv_ = std::make_unique<nn::Conv3d>(this, "time_conv", width, down ? width : 2 * width,
                                                std::array<int64_t, 3>{3, 1, 1},
                                                ops::Conv3dOptions{.stride = {down ? 2 : 1, 1, 1}});
    }
  }

  std::string_view kind() const override { return down_ ? "vae.down" : "vae.up"; }
  size_t histories() const override { return time_conv_ ? 1 : 0; }

  Tensors forward(const Tensors& in) override {
    if (in.size() == 1) return {resized(in[0])};
    History past(in[1]);
    const at::Tensor x = down_ ? halved(resized(in[0]), past) : resized(doubled(in[0], past));
    return {x, past.frames};
  }

 private:
  at::Tensor resized(const at::Tensor& x) const {
    if (down_) return conv_.forward(at::constant_pad_nd(x, {0, 1, 0, 1}));
    return conv_.forward(at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)}));
  }

  // A frame of every two. The first frame of a clip stays.
  at::Tensor halved(const at::Tensor& x, History& past) const {
    if (past.at == History::At::kFirst) {
      past.frames = x.unsqueeze(2);
      return x;
    }
    return as_frames(time_conv_->forward(past.join(x, 1)));
  }

  // Two frames of every one. The first frame of a clip stays, and the others do not see it.
  at::Tensor doubled(const at::Tensor& x, History& past) const {
    if (past.at == History::At::kFirst) {
      past.frames = at::zeros_like(x).unsqueeze(2).expand({-1, -1, 2, -1, -1}).clone();
      return x;
    }
    const at::Tensor twice = time_conv_->forward(past.join(x, 2));
    const int64_t B = twice.size(0), C = twice.size(1) / 2, T = twice.size(2);
    const int64_t H = twice.size(3), W = twice.size(4);
    return twice.view({B, 2, C, T, H, W})
        .permute({0, 3, 1, 4, 5, 2})
        .reshape({B * T * 2, H, W, C})
        .permute({0, 3, 1, 2});
  }

  bool down_;
  CausalConv conv_;
  std::unique_ptr<nn::Conv3d> time_conv_;
};

// float64 stays, everything else is computed with in float32.
at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
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
        conv_in_(this, "conv_in", encoder ? c.pixel_channels * c.patch * c.patch : c.channels,
                 encoder ? c.base_width : c.up_widths().back(), 3, 3),
        norm_out_(this, "norm_out", encoder ? c.widths.back() : c.up_widths().front()),
        conv_out_(this, "conv_out", encoder ? c.widths.back() : c.up_widths().front(),
                  encoder ? 2 * c.channels : c.pixel_channels * c.patch * c.patch, 3, 3) {
    if (encoder) {
      add_down(c);
      add_middle(c.widths.back());
    } else {
      add_middle(c.up_widths().back());
      add_up(c);
    }
  }
  ~CausalVaeHalf() override = default;

  // x: [F, C, H, W], channels-last: images, or with `past` a piece of each clip. `past` is empty in
  // front of the first one and holds all histories behind it.
  at::Tensor forward(const at::Tensor& x, BlockRunner& runner, Tensors* past = nullptr) const {
    const bool begins = past == nullptr || past->empty();
    if (past && past->empty()) past->assign(histories(), at::empty({0}, x.options()));
    size_t next = 0;
    const auto convolve = [&](const CausalConv& conv, const at::Tensor& in) {
      History history(past ? (*past)[next] : at::Tensor());
      const at::Tensor out = conv.forward(in, history);
      if (past) replace((*past)[next++], std::move(history.frames));
      return out;
    };
    at::Tensor h = convolve(conv_in_, x), around;
    auto shortcut = shortcuts_.begin();
    for (size_t number = 0; number < blocks_.size(); ++number) {
      FrameBlock& block = *blocks_[number];
      const bool is_within = shortcut != shortcuts_.end();
      if (is_within && number == shortcut->first) around = h;
      const size_t count = past ? block.histories() : 0;
      Tensors in = {std::move(h)};
      for (size_t i = 0; i < count; ++i) in.push_back((*past)[next + i]);
      Tensors out = runner.run(block, in);
      h = std::move(out[0]);
      for (size_t i = 0; i < count; ++i) replace((*past)[next++], std::move(out[i + 1]));
      if (is_within && number == shortcut->last) {
        h = h + shortcut->forward(around, begins);
        around.reset();
        ++shortcut;
      }
    }
    return convolve(conv_out_, norm_out_.forward(h, /*silu=*/true));
  }

  at::TensorOptions options() const { return conv_in_.weight->draw().options(); }

 private:
  size_t histories() const {
    size_t count = 2;
    for (const auto& block : blocks_) count += block->histories();
    return count;
  }
  void add_res(const std::string& block, int64_t in, int64_t out) {
    blocks_.push_back(std::make_unique<ResBlock>(this, block, in, out));
  }
  void add_middle(int64_t width) {
    add_res("mid_block.resnets.0", width, width);
    blocks_.push_back(std::make_unique<AttentionBlock>(this, "mid_block.attentions.0", width));
    add_res("mid_block.resnets.1", width, width);
  }
  void add_down(const CausalVaeConfig& c) {
    int64_t width = c.base_width, n = 0;
    for (size_t i = 0; i < c.widths.size(); ++i) {
      const std::string level = "down_blocks." + std::to_string(i);
      const auto next = [&](const std::string& inside) {
        return c.is_residual ? level + inside : "down_blocks." + std::to_string(n++);
      };
      const size_t first = blocks_.size();
      for (int64_t j = 0; j < c.res_blocks; ++j) {
        add_res(next(".resnets." + std::to_string(j)), width, c.widths[i]);
        width = c.widths[i];
      }
      const bool is_last = i + 1 == c.widths.size();
      if (!is_last)
        blocks_.push_back(std::make_unique<Resample>(this, next(".downsampler"), width, width,
                                                     /*down=*/true, c.temporal[i]));
      if (c.is_residual)
        shortcuts_.push_back({first, blocks_.size() - 1, width, !is_last && c.temporal[i] ? 2 : 1,
                              is_last ? 1 : 2, /*is_up=*/false});
    }
  }
  void add_up(const CausalVaeConfig& c) {
    const std::vector<int64_t>& widths = c.up_widths();
    int64_t width = widths.back();
    for (size_t i = 0; i < widths.size(); ++i) {
      const size_t level = widths.size() - 1 - i;
      const std::string stem = "up_blocks." + std::to_string(i);
      const size_t first = blocks_.size();
      for (int64_t j = 0; j <= c.res_blocks; ++j) {
        add_res(stem + ".resnets." + std::to_string(j), width, widths[level]);
        width = widths[level];
      }
      if (level == 0) break;
      const bool temporal = c.temporal[level - 1];
      const int64_t out = c.is_residual ? width : width / 2;
      blocks_.push_back(std::make_unique<Resample>(
          this, stem + (c.is_residual ? ".upsampler" : ".upsamplers.0"), width, out,
          /*down=*/false, temporal));
      width = out;
      if (c.is_residual)
        shortcuts_.push_back({first, blocks_.size() - 1, width, temporal ? 2 : 1, 2,
                              /*is_up=*/true});
    }
  }

  CausalConv conv_in_;
  std::vector<std::unique_ptr<FrameBlock>> blocks_;
  std::vector<Shortcut> shortcuts_;  // in order
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

int64_t CausalVae::temporal_stride() const {
  return int64_t{1} << std::count(config_.temporal.begin(), config_.temporal.end(), true);
}

at::Tensor CausalVae::encode(const at::Tensor& pixels_BCTHW, BlockRunner& runner) const {
  const at::TensorOptions options = encoder_->options();
  const at::ScalarType dtype = options.dtype().toScalarType();
  const int64_t B = pixels_BCTHW.size(0), T = pixels_BCTHW.size(2), stride = temporal_stride();
  if ((T - 1) % stride != 0) {
    throw Error(ErrorCode::kInvalidArgument, "a clip of " + std::to_string(T) +
                                                 " frames: one more than a multiple of " +
                                                 std::to_string(stride) + " is encoded");
  }
  Tensors pieces, past;
  for (int64_t t = 0; t < T; t += t == 0 ? 1 : stride) {
    const at::Tensor pixels =
        as_frames(pixels_BCTHW.narrow(2, t, t == 0 ? 1 : stride)).to(options.device(), dtype);
    const at::Tensor x =
        as_patches(pixels, config_.patch).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor moments =
        quant_conv_->forward(encoder_->forward(x, runner, T > 1 ? &past : nullptr));
    const at::Tensor mean = moments.narrow(1, 0, config_.channels).to(wide(dtype));
    pieces.push_back(((mean - per_channel(config_.mean, mean)) / per_channel(config_.std, mean))
                         .to(dtype)
                         .contiguous());
    pieces.back() = as_clips(pieces.back(), B);
  }
  return (T == 1 ? pieces.front() : at::cat(pieces, 2)).contiguous();
}

void CausalVae::decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
                       const FrameSink& sink) const {
  const at::TensorOptions options = decoder_->options();
  const at::ScalarType dtype = options.dtype().toScalarType();
  const int64_t B = latents_BCTHW.size(0), T = latents_BCTHW.size(2);
  Tensors past;
  for (int64_t t = 0; t < T; ++t) {
    const at::Tensor z = latents_BCTHW.select(2, t).to(options.device(), wide(dtype));
    const at::Tensor x = (z * per_channel(config_.std, z) + per_channel(config_.mean, z)).to(dtype);
    const at::Tensor y =
        decoder_->forward(post_quant_conv_->forward(x.contiguous(at::MemoryFormat::ChannelsLast)),
                          runner, T > 1 ? &past : nullptr);
    const at::Tensor pixels = as_pixels(at::clamp(y, -1.0, 1.0).to(at::kFloat), config_.patch);
    sink(as_clips(pixels.contiguous(), B).contiguous());
  }
}

}  // namespace atelier::parts
