// Shape letters: B pictures or samples, C channels, F frames, T latent frames, M width of a motion,
// D width of the denoiser.
#include "animate_face.h"

#include <cmath>

#include <ATen/ATen.h>

#include "dit_block.h"

namespace wan {

using atelier::Tensors;
using atelier::WeightPtr;
using atelier::nn::Linear;
namespace ops = atelier::ops;

namespace {

constexpr int64_t kLastSide = 4;  // of a picture behind all levels
constexpr int64_t kFaceKernel = 3;
constexpr double kFaceNormEps = 1e-6;
constexpr double kSlope = 0.2;  // of what is below zero

// Weights of layers are scaled by this.
double scale_of(int64_t fan_in) {
  return 1 / std::sqrt(static_cast<double>(fan_in));
}
double scale_of(const WeightPtr& kernel) {
  return scale_of(kernel->numel() / kernel->sizes()[0]);
}

// sqrt(2) leaky_relu(y + bias), y what the scaled `kernel` gives.
at::Tensor activated(const at::Tensor& x, const WeightPtr& kernel, const WeightPtr& bias,
                     ops::ConvOptions options) {
  const double gain = std::sqrt(2.0);
  const at::Tensor shift = bias->draw().view({1, -1, 1, 1}) * gain;
  const at::Tensor y = at::add(shift, ops::conv2d(x, kernel, {}, options), gain * scale_of(kernel));
  return at::leaky_relu(y, kSlope);
}

// Weighs neighbours by 1, 3, 3, 1 along both sides.
at::Tensor blurred(const at::Tensor& x_BCHW, int64_t padding, int64_t stride) {
  const int64_t C = x_BCHW.size(1);
  const at::Tensor line = 4 - 2 * (at::arange(4, x_BCHW.options()) - 1.5).abs();
  const at::Tensor kernel = (line.unsqueeze(1) * line / 64).expand({C, 1, 4, 4});
  return at::conv2d(x_BCHW, kernel, {}, stride, padding, 1, C);
}

std::vector<int64_t> bias_shape(int64_t channels, bool is_flat) {
  if (is_flat) return {channels};
  return {1, channels, 1, 1};
}

}  // namespace

int64_t AnimateConfig::face_side() const {
  return kLastSide << (levels.size() - 1);
}

FaceLevel::FaceLevel(Module* parent, std::string name, int64_t in, int64_t out, bool flat_biases)
    : Module(parent, std::move(name)),
      conv1_(declare("conv1.0.weight", {in, in, kFaceKernel, kFaceKernel})),
      bias1_(declare("conv1.1.bias", bias_shape(in, flat_biases))),
      conv2_(declare("conv2.1.weight", {out, in, kFaceKernel, kFaceKernel})),
      bias2_(declare("conv2.2.bias", bias_shape(out, flat_biases))),
      skip_(declare("skip.1.weight", {out, in, 1, 1})) {}

at::Tensor FaceLevel::forward(const at::Tensor& x) const {
  const at::Tensor same = activated(x, conv1_, bias1_, {.padding = 1});
  const at::Tensor half = activated(blurred(same, 2, 1), conv2_, bias2_, {.stride = 2});
  const at::Tensor skipped = ops::conv2d(blurred(x, 1, 2), skip_, {}, {});
  return at::add(half, skipped, scale_of(skip_)) / std::sqrt(2.0);
}

MotionEncoder::MotionEncoder(Module* parent, std::string name, const AnimateConfig& c)
    : Block(parent, std::move(name)),
      conv_in_(declare("enc.net_app.convs.0.0.weight", {c.levels.front(), 3, 1, 1})),
      bias_in_(declare("enc.net_app.convs.0.1.bias", bias_shape(c.levels.front(), c.flat_biases))) {
  const std::string convs = "enc.net_app.convs.";
  for (size_t i = 1; i < c.levels.size(); ++i)
    levels_.push_back(std::make_unique<FaceLevel>(this, convs + std::to_string(i), c.levels[i - 1],
                                                  c.levels[i], c.flat_biases));
  conv_out_ = declare(convs + std::to_string(c.levels.size()) + ".weight",
                      {c.style_width, c.levels.back(), kLastSide, kLastSide});
  for (int64_t i = 0; i < c.layers; ++i) {
    const int64_t out = i + 1 < c.layers ? c.style_width : c.motions;
    layers_.push_back(
        std::make_unique<Linear>(this, "enc.fc." + std::to_string(i), c.style_width, out));
  }
}

MotionEncoder::~MotionEncoder() = default;

Tensors MotionEncoder::forward(const Tensors& in) {
  at::Tensor x = activated(in[0], conv_in_, bias_in_, {});
  for (const auto& level : levels_) x = level->forward(x);
  x = ops::conv2d(x, conv_out_, {}, {}).flatten(1) * scale_of(conv_out_);
  for (const auto& layer : layers_) x = layer->forward(x * scale_of(layer->in_features()));
  return {at::matmul(x.to(in[1].scalar_type()), in[1].t()).to(x.scalar_type())};
}

FaceEncoder::FaceEncoder(Module* parent, std::string name, const AnimateConfig& c)
    : Block(parent, std::move(name)),
      heads_(c.face_heads),
      padding_(declare("padding_tokens", {1, 1, 1, c.width})),
      conv1_(this, "conv1_local.conv", c.motion_width, c.face_width * c.face_heads, kFaceKernel),
      conv2_(this, "conv2.conv", c.face_width, c.face_width, kFaceKernel, {.stride = 2}),
      conv3_(this, "conv3.conv", c.face_width, c.face_width, kFaceKernel, {.stride = 2}),
      out_(this, "out_proj", c.face_width, c.width) {}

FaceEncoder::~FaceEncoder() = default;

Tensors FaceEncoder::forward(const Tensors& in) {
  const int64_t B = in[0].size(0);
  // A frame sees itself and two before it; in front of the first one that is repeated.
  const auto causal = [](const at::Tensor& x_BCF) {
    return at::replication_pad1d(x_BCF, {kFaceKernel - 1, 0});
  };
  const auto normed = [](const at::Tensor& x_BCF) {
    const at::Tensor rows = x_BCF.transpose(1, 2);
    return at::silu(at::layer_norm(rows, {rows.size(2)}, {}, {}, kFaceNormEps));
  };
  const at::Tensor local = conv1_.forward(causal(in[0].transpose(1, 2)));
  at::Tensor x = normed(local.view({B * heads_, local.size(1) / heads_, local.size(2)}));
  x = normed(conv2_.forward(causal(x.transpose(1, 2))));
  x = normed(conv3_.forward(causal(x.transpose(1, 2))));
  x = out_.forward(x).unflatten(0, {B, heads_}).transpose(1, 2);  // [B, T, heads, D]
  return {at::cat({x, padding_->draw().expand({B, x.size(1), 1, -1})}, 2)};
}

}  // namespace wan
