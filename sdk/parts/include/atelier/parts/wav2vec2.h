// wav2vec2's encoder of sound, as its large models have it: norms of channels behind each
// convolution, and in front of attention and products.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/config_fields.h"

namespace atelier::parts {

// The defaults are those of large models, for what shapes do not tell.
struct Wav2Vec2Config {
  int64_t layers = 24, width = 1024, heads = 16, mlp_width = 4096;
  // Numbers of each convolution; the first reads samples.
  std::vector<int64_t> conv_widths = {512, 512, 512, 512, 512, 512, 512};
  std::vector<int64_t> conv_kernels = {10, 3, 3, 3, 3, 2, 2};
  std::vector<int64_t> conv_strides = {5, 2, 2, 2, 2, 2, 2};
  bool conv_bias = true;
  int64_t position_kernel = 128, position_groups = 16;  // of the convolution that tells positions
  double eps = 1e-5;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("mlp_width", mlp_width), fields("conv_widths", conv_widths);
    fields("conv_kernels", conv_kernels), fields("conv_strides", conv_strides);
    fields("conv_bias", conv_bias), fields("position_kernel", position_kernel);
    fields("position_groups", position_groups), fields("eps", eps);
  }
};

// Where a family hears with it.
struct Wav2Vec2Use {
  std::string_view component = "audio_encoder";
};

// Says whether a checkpoint holds such a model. Its variant is left empty. Without a config it has
// the numbers of large models, whose widths and kernels it has to have. Spellings: "transformers"
// (weight_g and weight_v of the convolution that tells positions), "parametrized"
// (parametrizations.weight.original0 and original1, as newer LibTorch writes them), and "ctc" and
// "ctc_parametrized", the same behind "wav2vec2." beside a head; all of them behind no prefix or
// the component's name. Throws Error{kInvalidArgument} when shapes and config.json contradict each
// other, and Error{kUnsupported} for quantised files.
std::optional<Detection> detect_wav2vec2(const TensorIndex& checkpoint, const Wav2Vec2Use& use);

// See ModelFamily.
ConfigFields wav2vec2_fields(const Detection& part);
WeightMap wav2vec2_map(const Detection& part);

// A small one for tests.
Detection tiny_wav2vec2(const Wav2Vec2Use& use);

// Sound of mean 0 and variance 1, as the model was trained on it: [T] to [T], in float32.
at::Tensor normalised_sound(const at::Tensor& samples_T);

class EncoderLayer;
class Wav2Vec2Convolution;

// Weights are called as transformers calls them, with weight_g and weight_v.
class Wav2Vec2 final : public nn::Module {
 public:
  explicit Wav2Vec2(const Wav2Vec2Config& config);
  ~Wav2Vec2() override;

  // samples: [T] of any floating dtype, 16 kHz, see normalised_sound(). Returns all states,
  // [layers + 1, frames, width()] in compute dtype: the first is in front of the layers, and the
  // last norm follows the last one alone. Throws Error{kInvalidArgument} for less sound than a
  // frame needs.
  at::Tensor forward(const at::Tensor& samples_T, BlockRunner& runner) const;

  int64_t states() const { return config_.layers + 1; }
  int64_t width() const { return config_.width; }

 private:
  at::Tensor positions(const at::Tensor& x_FD) const;

  Wav2Vec2Config config_;
  std::vector<std::unique_ptr<Wav2Vec2Convolution>> convolutions_;
  nn::LayerNorm features_norm_;
  nn::Linear projection_;
  WeightPtr position_length_, position_direction_, position_bias_;
  std::vector<std::unique_ptr<EncoderLayer>> layers_;
  nn::LayerNorm norm_;
};

// The row of a family that hears with it. `use` is static. A component that only some
// variants have is not required, and has no tiny part.
template <const Wav2Vec2Use& use>
constexpr ComponentRow wav2vec2_row(std::string_view help, bool required = true,
                                    std::string_view variants = "*") {
  return {.spec = {.name = use.component,
                   .role = Role::kTextEncoder,
                   .required = required,
                   .help = help,
                   .variants = variants},
          .detect = [](const TensorIndex& in) { return detect_wav2vec2(in, use); },
          .config_fields = wav2vec2_fields,
          .weight_map = wav2vec2_map,
          .make = make_part<Wav2Vec2, Wav2Vec2Config>,
          .tiny = required ? +[] { return tiny_wav2vec2(use); } : nullptr,
          .spellings = {"transformers", "parametrized", "ctc", "ctc_parametrized"}};
}

}  // namespace atelier::parts
