// The denoiser of Z-Image: blocks over the image's rows, blocks over the text's rows, and a stack
// over both together.
#pragma once

#include <array>
#include <memory>
#include <tuple>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/nn/waves.h"
#include "atelier/shared_rows.h"

namespace z_image {
using namespace atelier;

struct DitConfig {
  int64_t channels, width, layers, refiners, heads, mlp_width, time_width, time_hidden, text_width;
  double norm_eps, rope_theta, time_scale;
  std::array<int64_t, 3> axes;
  template <class Fields>
  void visit(Fields&& fields) {
    fields("channels", channels), fields("width", width), fields("layers", layers),
        fields("refiners", refiners), fields("heads", heads), fields("mlp_width", mlp_width),
        fields("time_width", time_width), fields("time_hidden", time_hidden),
        fields("text_width", text_width), fields("norm_eps", norm_eps),
        fields("rope_theta", rope_theta), fields("time_scale", time_scale), fields("axes", axes);
  }
};

class DitBlock final : public Block {
 public:
  DitBlock(Module* parent, std::string name, const DitConfig& c, bool is_modulated);
  std::string_view kind() const override { return modulation_ ? "modulated" : "plain"; }
  // in: rows [N, D], offsets of the samples, cosines and sines [N, head_dim / 2], and where the
  // block is modulated what nn::NoiseLevels gives it.
  Tensors forward(const Tensors& in) override;
  const nn::Linear* modulation() const { return modulation_.get(); }

 private:
  int64_t heads_;
  double eps_;
  nn::RMSNorm attention_norm1_, attention_norm2_, ffn_norm1_, ffn_norm2_;
  nn::Linear to_q_, to_k_, to_v_, to_out_, w1_, w3_, w2_;
  nn::RMSNorm norm_q_, norm_k_;
  std::unique_ptr<nn::Linear> modulation_;
};

class Dit final : public Denoiser, public PacksCalls, public SharesRows {
 public:
  explicit Dit(const DitConfig& c);
  int64_t channels() const override { return config_.channels; }
  int64_t patch() const override { return 2; }
  at::ScalarType dtype() const override { return x_embedder_.weight->draw().scalar_type(); }
  std::vector<ConditioningEntry> entries() const override {
    return {{.width = config_.text_width}};
  }
  int64_t heads() const override { return config_.heads; }
  int64_t key_heads() const override { return config_.heads; }
  nn::NoiseLevels* levels() override { return &levels_; }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override;
  std::vector<at::Tensor> denoise_all(std::span<const DenoiseInputs> calls,
                                      BlockRunner& runner) override;

 private:
  // The filled text of a sample, and rows and columns of its image.
  struct Sample {
    int64_t text, height, width;
    bool operator==(const Sample&) const = default;
  };
  using Key = std::pair<std::vector<Sample>, at::Device>;
  struct Tables {
    nn::Waves image, text;
  };
  Tables tables(const Key& key) const;
  std::vector<Sample> samples(std::span<const DenoiseInputs> calls,
                              const std::vector<int64_t>& texts) const;
  // Patches of two by two cells of all samples, channels innermost.
  std::vector<at::Tensor> patches(std::span<const DenoiseInputs> calls) const;
  // The velocities of these rows, which are filled up.
  std::vector<at::Tensor> velocities(std::span<const DenoiseInputs> calls,
                                     const std::vector<at::Tensor>& rows) const;

  DitConfig config_;
  nn::Linear x_embedder_, time_in_, time_out_;
  nn::RMSNorm text_norm_;
  nn::Linear text_embedder_;
  WeightPtr x_pad_, text_pad_;
  std::vector<std::unique_ptr<DitBlock>> noise_refiner_, context_refiner_, layers_;
  nn::Linear final_modulation_, final_linear_;
  nn::NoiseLevels levels_;
  nn::RecentTables<Key, Tables> tables_;
};

}  // namespace z_image
