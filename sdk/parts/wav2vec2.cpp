// Shape letters: T samples, F frames, C channels of convolutions, D width.
#include "atelier/parts/wav2vec2.h"

#include <ATen/ATen.h>

#include "encoder_layer.h"
#include "hidden_states.h"

namespace atelier::parts {

using nn::LayerNorm;
using nn::Linear;
using nn::Module;

// A convolution, the norm of its channels and GELU. Input and output: [1, C, F].
class Wav2Vec2Convolution final : public Module {
 public:
  Wav2Vec2Convolution(Module* parent, size_t number, const Wav2Vec2Config& c)
      : Module(parent, "feature_extractor.conv_layers." + std::to_string(number)),
        conv_(this, "conv", number == 0 ? 1 : c.conv_widths[number - 1], c.conv_widths[number],
              c.conv_kernels[number], {.stride = c.conv_strides[number]}, c.conv_bias),
        norm_(this, "layer_norm", c.conv_widths[number]) {}
  ~Wav2Vec2Convolution() override = default;

  at::Tensor forward(const at::Tensor& x) const {
    return at::gelu(norm_.forward(conv_.forward(x).transpose(1, 2))).transpose(1, 2);
  }

  at::TensorOptions options() const { return conv_.weight->draw().options(); }

 private:
  nn::Conv1d conv_;
  LayerNorm norm_;
};

namespace {

constexpr const char* kPositions = "encoder.pos_conv_embed.conv.";

}  // namespace

at::Tensor normalised_sound(const at::Tensor& samples_T) {
  const at::Tensor x = samples_T.to(at::kFloat);
  const auto [variance, mean] = at::var_mean(x, /*unbiased=*/false);
  return (x - mean) / at::sqrt(variance + 1e-7);
}

Wav2Vec2::Wav2Vec2(const Wav2Vec2Config& c)
    : Module(nullptr, ""),
      config_(c),
      features_norm_(this, "feature_projection.layer_norm", c.conv_widths.back(), c.eps),
      projection_(this, "feature_projection.projection", c.conv_widths.back(), c.width),
      position_length_(declare(kPositions + std::string("weight_g"), {1, 1, c.position_kernel})),
      position_direction_(declare(kPositions + std::string("weight_v"),
                                  {c.width, c.width / c.position_groups, c.position_kernel})),
      position_bias_(declare(kPositions + std::string("bias"), {c.width})),
      norm_(this, "encoder.layer_norm", c.width, c.eps) {
  for (size_t i = 0; i < c.conv_widths.size(); ++i)
    convolutions_.push_back(std::make_unique<Wav2Vec2Convolution>(this, i, c));
  const EncoderLayerOptions options = {.kind = "wav2vec2",
                                       .width = c.width,
                                       .heads = c.heads,
                                       .mlp_width = c.mlp_width,
                                       .eps = c.eps,
                                       .norm1 = "layer_norm",
                                       .attention = "attention",
                                       .norm2 = "final_layer_norm",
                                       .up = "feed_forward.intermediate_dense",
                                       .down = "feed_forward.output_dense"};
  for (int64_t i = 0; i < c.layers; ++i) {
    layers_.push_back(
        std::make_unique<EncoderLayer>(this, "encoder.layers." + std::to_string(i), options));
  }
}

Wav2Vec2::~Wav2Vec2() = default;

// What tells frames where they are, [F, D]: a convolution over them whose kernel has a length for
// each of its places and a direction.
at::Tensor Wav2Vec2::positions(const at::Tensor& x_FD) const {
  const at::Tensor direction = position_direction_->draw();
  const at::Tensor length = at::linalg_vector_norm(direction, 2, {0, 1}, /*keepdim=*/true);
  const at::Tensor kernel = direction * (position_length_->draw() / length);
  const at::Tensor y = at::conv1d(x_FD.t().unsqueeze(0), kernel, position_bias_->draw(),
                                  /*stride=*/1, /*padding=*/config_.position_kernel / 2,
                                  /*dilation=*/1, config_.position_groups);
  // A kernel of even length gives a frame more than there are.
  return at::gelu(y[0].narrow(1, 0, x_FD.size(0))).t();
}

at::Tensor Wav2Vec2::forward(const at::Tensor& samples_T, BlockRunner& runner) const {
  at::Tensor sound = samples_T.to(convolutions_.front()->options()).view({1, 1, -1});
  for (const auto& convolution : convolutions_) sound = convolution->forward(sound);
  const at::Tensor x = projection_.forward(features_norm_.forward(sound[0].t()));
  Tensors inputs = {x + positions(x), Segments::uniform(1, x.size(0)).tensor()};
  std::vector<int64_t> behind;
  for (int64_t i = 0; i < states(); ++i) behind.push_back(i);
  Tensors given = hidden_states(layers_, inputs, behind, runner);
  given.back() = norm_.forward(given.back());
  return at::stack(given);
}

}  // namespace atelier::parts
