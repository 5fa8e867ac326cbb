// Shape letters: B samples, C latent channels, T frames, H and W latent height and width, D width,
// d head width, N packed rows of all samples.
#include "dit.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/named_inputs.h"
#include "atelier/nn/forward_all.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace lumina2 {

using atelier::Segments;
using atelier::SharedRows;
using atelier::Tensors;
using atelier::nn::Linear;
using atelier::nn::Module;
using atelier::nn::RMSNorm;
namespace ops = atelier::ops;

namespace {

constexpr int64_t kTimeChannels = 256;
constexpr double kFinalNormEps = 1e-6, kQkNormEps = 1e-5;
constexpr double kRopeTheta = 10000;

// [N, heads * d] to [N, heads, d].
at::Tensor heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1) / head_dim, head_dim});
}

// The model's time runs from noise to the image.
at::Tensor time_channels(const at::Tensor& sigma_B) {
  return atelier::nn::time_channels(1 - sigma_B, kTimeChannels);
}

// Angles of positions 0 to count - 1: [count, channels / 2] float64.
at::Tensor angles(int64_t count, int64_t channels, at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kDouble);
  return atelier::nn::rope_angles(at::arange(count, options), channels, kRopeTheta);
}

// Scales and gates of the two halves of a block: [B, D] each, views of [B, 4 D]; undefined in a
// block without modulation.
struct Modulation {
  Modulation() = default;
  explicit Modulation(const at::Tensor& m) {
    const std::vector<at::Tensor> parts = m.chunk(4, 1);
    scale1 = parts[0], gate1 = parts[1], scale2 = parts[2], gate2 = parts[3];
  }
  at::Tensor scale1, gate1, scale2, gate2;
};

}  // namespace

// Inputs: rows [N, D], cosines and sines of the rows, offsets of the samples' rows, and in a
// modulated block the noise level. Output: rows.
//
// The noise level is silu(time), [B, time_width] or in groups (see nn::level_groups()), or what the
// block makes of it, prepared: its modulation, [B, 4 D].
class DitBlock final : public atelier::Block {
 public:
  enum Input { kRows, kCos, kSin, kOffsets, kLevel };

  DitBlock(Module* parent, std::string name, const DitConfig& c, bool is_modulated)
      : Block(parent, std::move(name)),
        config_(c),
        qkv_(this, "attention.qkv", c.width, c.qkv_width(), /*bias=*/false),
        out_(this, "attention.out", c.width, c.width, /*bias=*/false),
        q_norm_(this, "attention.q_norm", c.head_dim, kQkNormEps),
        k_norm_(this, "attention.k_norm", c.head_dim, kQkNormEps),
        w1_(this, "feed_forward.w1", c.width, c.mlp_width, /*bias=*/false),
        w2_(this, "feed_forward.w2", c.mlp_width, c.width, /*bias=*/false),
        w3_(this, "feed_forward.w3", c.width, c.mlp_width, /*bias=*/false),
        attention_norm1_(this, "attention_norm1", c.width, c.norm_eps),
        attention_norm2_(this, "attention_norm2", c.width, c.norm_eps),
        ffn_norm1_(this, "ffn_norm1", c.width, c.norm_eps),
        ffn_norm2_(this, "ffn_norm2", c.width, c.norm_eps) {
    if (is_modulated) {
      modulation_ = std::make_unique<Linear>(this, "adaLN_modulation.1", c.time_width, 4 * c.width);
    }
  }

  std::string_view kind() const override { return modulation_ ? "dit" : "dit.context"; }

  Tensors forward(const Tensors& in) override {
    const Segments rows = Segments::from_tensor(in[kOffsets]);
    const Modulation m =
        modulation_ ? Modulation(modulated(in[kLevel], rows.count())) : Modulation();
    const double eps = config_.norm_eps;

    const at::Tensor attended = out_.forward(attend(
        ops::rms_norm_modulate(in[kRows], attention_norm1_.weight->draw(), m.scale1, rows, eps),
        rows, in[kCos], in[kSin]));
    const auto [sum, normed] = ops::rms_gate_residual_norm_modulate(
        in[kRows], attended, attention_norm2_.weight->draw(), m.gate1, ffn_norm1_.weight->draw(),
        m.scale2, rows, eps);
    const Tensors gated = atelier::nn::forward_all({&w1_, &w3_}, normed);
    const at::Tensor mlp = w2_.forward(ops::swiglu(gated[0], gated[1]));
    return {ops::rms_gate_residual(sum, mlp, ffn_norm2_.weight->draw(), m.gate2, rows, eps)};
  }

  const Linear* modulation() const { return modulation_.get(); }

 private:
  at::Tensor modulated(const at::Tensor& level, int64_t B) const {
    const bool is_prepared = level.size(-1) == modulation_->out_features();
    return is_prepared ? level : atelier::nn::of_levels(*modulation_, level, B);
  }

  at::Tensor attend(const at::Tensor& x, const Segments& rows, const at::Tensor& cos,
                    const at::Tensor& sin) const {
    const int64_t d = config_.head_dim, keys = config_.kv_heads * d;
    const std::vector<at::Tensor> qkv =
        qkv_.forward(x).split_with_sizes({config_.width, keys, keys}, 1);
    const auto turn = [&](const at::Tensor& t, const RMSNorm& norm) {
      return ops::norm_rope(heads(t, d), norm.weight->draw(), cos, sin,
                            ops::RopeLayout::kInterleaved, norm.eps);
    };
    return ops::attention(turn(qkv[0], q_norm_), turn(qkv[1], k_norm_), heads(qkv[2], d), rows);
  }

  DitConfig config_;
  Linear qkv_, out_;
  RMSNorm q_norm_, k_norm_;
  Linear w1_, w2_, w3_;
  RMSNorm attention_norm1_, attention_norm2_, ffn_norm1_, ffn_norm2_;
  std::unique_ptr<Linear> modulation_;
};

Dit::Dit(const DitConfig& c)
    : Denoiser(nullptr, "dit"),
      config_(c),
      x_embedder_(this, "x_embedder", c.channels * c.patch * c.patch, c.width),
      time_in_(this, "t_embedder.mlp.0", kTimeChannels, c.time_width),
      time_out_(this, "t_embedder.mlp.2", c.time_width, c.time_width),
      caption_norm_(this, "cap_embedder.0", c.text_width, c.norm_eps),
      caption_in_(this, "cap_embedder.1", c.text_width, c.width),
      context_refiner_(make_blocks("context_refiner.", c.refiners, /*is_modulated=*/false)),
      noise_refiner_(make_blocks("noise_refiner.", c.refiners, /*is_modulated=*/true)),
      layers_(make_blocks("layers.", c.layers, /*is_modulated=*/true)),
      final_modulation_(this, "final_layer.adaLN_modulation.1", c.time_width, c.width),
      final_linear_(this, "final_layer.linear", c.width, c.channels * c.patch * c.patch),
      levels_(time_channels, time_in_, time_out_, {&final_modulation_}) {
  for (const auto* part : {&noise_refiner_, &layers_}) {
    for (const auto& block : *part) levels_.add(*block, {block->modulation()});
  }
}

Dit::~Dit() = default;

std::vector<std::unique_ptr<DitBlock>> Dit::make_blocks(const char* name, int64_t count,
                                                        bool is_modulated) {
  std::vector<std::unique_ptr<DitBlock>> blocks;
  for (int64_t i = 0; i < count; ++i) {
    blocks.push_back(
        std::make_unique<DitBlock>(this, name + std::to_string(i), config_, is_modulated));
  }
  return blocks;
}

Dit::Rope Dit::make_rope(const std::vector<SampleRows>& samples, at::Device device) const {
  const auto [text_axis, row_axis, column_axis] = config_.axes;

  // Text counts along the first axis; the whole image stands behind its sample's text there, and
  // counts rows and columns along the others.
  const int64_t longest = std::ranges::max(samples, {}, &SampleRows::text).text,
                highest = std::ranges::max(samples, {}, &SampleRows::height).height,
                widest = std::ranges::max(samples, {}, &SampleRows::width).width;
  const at::Tensor along_angles = angles(longest + 1, text_axis, device);
  const at::Tensor row_angles = angles(highest, row_axis, device);
  const at::Tensor column_angles = angles(widest, column_axis, device);
  Rope r;
  const auto place = [&](at::Tensor (*wave)(const at::Tensor&), at::Tensor& of_image,
                         at::Tensor& of_text, at::Tensor& of_both) {
    const auto values = [&](const at::Tensor& angle) { return wave(angle).to(at::kFloat); };
    const at::Tensor along = values(along_angles), rows = values(row_angles),
                     columns = values(column_angles);
    const int64_t grid_width = rows.size(1) + columns.size(1);
    const at::Tensor still =
        values(at::zeros({1, grid_width}, along_angles.options()));  // where nothing turns
    Tensors text, image, both;
    for (const auto& [height, width, length] : samples) {
      const at::Tensor grid =
          at::cat({rows.narrow(0, 0, height).unsqueeze(1).expand({height, width, -1}),
                   columns.narrow(0, 0, width).unsqueeze(0).expand({height, width, -1})},
                  2)
              .view({height * width, -1});
      text.push_back(at::cat({along.narrow(0, 0, length), still.expand({length, -1})}, 1));
      image.push_back(at::cat({along.narrow(0, length, 1).expand({grid.size(0), -1}), grid}, 1));
      both.push_back(text.back());
      both.push_back(image.back());
    }
    of_image = at::cat(image, 0);
    of_text = at::cat(text, 0);
    of_both = at::cat(both, 0);
  };
  place(at::cos, r.image_cos, r.text_cos, r.cos);
  place(at::sin, r.image_sin, r.text_sin, r.sin);
  return r;
}

std::vector<Dit::SampleRows> Dit::rows_of(std::span<const atelier::DenoiseInputs> calls,
                                          const std::vector<int64_t>& texts) const {
  const int64_t p = config_.patch;
  std::vector<SampleRows> samples;
  for (const atelier::DenoiseInputs& in : calls) {
    const at::Tensor& x = in.x_BCTHW;
    for (int64_t b = 0; b < x.size(0); ++b)
      samples.push_back(
          {.height = x.size(3) / p, .width = x.size(4) / p, .text = texts[samples.size()]});
  }
  return samples;
}

// Values of a token: its rows, its columns, then channels.
at::Tensor Dit::to_rows(std::span<const atelier::DenoiseInputs> calls) const {
  const int64_t p = config_.patch;
  Tensors rows;
  for (const atelier::DenoiseInputs& in : calls) {
    const at::Tensor& x = in.x_BCTHW;
    const int64_t B = x.size(0), C = x.size(1), H = x.size(3) / p, W = x.size(4) / p;
    rows.push_back(
        x.reshape({B, C, H, p, W, p}).permute({0, 2, 4, 3, 5, 1}).reshape({B * H * W, p * p * C}));
  }
  return rows.size() == 1 ? rows.front() : at::cat(rows);
}

std::vector<at::Tensor> Dit::to_latents(const at::Tensor& rows,
                                        std::span<const atelier::DenoiseInputs> calls) const {
  const int64_t p = config_.patch;
  std::vector<at::Tensor> latents;
  int64_t first = 0;
  for (const atelier::DenoiseInputs& in : calls) {
    const at::Tensor& x = in.x_BCTHW;
    const int64_t B = x.size(0), C = x.size(1), H = x.size(3) / p, W = x.size(4) / p;
    // The model goes from noise to the image.
    latents.push_back(rows.narrow(0, first, B * H * W)
                          .neg()
                          .view({B, H, W, p, p, C})
                          .permute({0, 5, 1, 3, 2, 4})
                          .reshape({B, C, 1, H * p, W * p}));
    first += B * H * W;
  }
  return latents;
}

at::Tensor Dit::denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) {
  return denoise_all({&in, 1}, runner).front();
}

std::vector<at::Tensor> Dit::denoise_all(std::span<const atelier::DenoiseInputs> calls,
                                         atelier::BlockRunner& runner) {
  const atelier::CallSamples all = atelier::samples_of(calls);
  const at::Device device = calls.front().x_BCTHW.device();
  const at::ScalarType dtype = calls.front().x_BCTHW.scalar_type();
  const atelier::PackedRows prompts = atelier::pack_entry(all.cond, atelier::kPromptEmbeds);
  const std::vector<SampleRows> samples = rows_of(calls, prompts.lengths);
  std::vector<int64_t> of_images;
  for (const SampleRows& sample : samples) of_images.push_back(sample.height * sample.width);
  const SharedRows text_rows(prompts.rows), image_rows{Segments(of_images)},
      rows = join(text_rows, image_rows);
  const Rope& table = ropes_.get({samples, device}, [&] { return make_rope(samples, device); });
  const auto level = levels_.step(all.sigma_B, dtype, all.levels);

  at::Tensor text =
      caption_in_.forward(caption_norm_.forward(text_rows.take(prompts.values.to(dtype))));
  const at::Tensor text_cos = text_rows.take(table.text_cos),
                   text_sin = text_rows.take(table.text_sin);
  for (const auto& block : context_refiner_) {
    text = runner.run(*block, {text, text_cos, text_sin, text_rows.rows().tensor()})[0];
  }

  at::Tensor image = x_embedder_.forward(image_rows.take(to_rows(calls)));
  const at::Tensor image_cos = image_rows.take(table.image_cos),
                   image_sin = image_rows.take(table.image_sin);
  for (size_t i = 0; i < noise_refiner_.size(); ++i) {
    image = runner.run(*noise_refiner_[i], {image, image_cos, image_sin, image_rows.rows().tensor(),
                                            level.of_block(i)})[0];
  }

  at::Tensor joint = atelier::join_rows(text, text_rows.rows(), image, image_rows.rows());
  text.reset(), image.reset();
  const at::Tensor cos = rows.take(table.cos), sin = rows.take(table.sin);
  for (size_t i = 0; i < layers_.size(); ++i) {
    joint = runner.run(*layers_[i], {joint, cos, sin, rows.rows().tensor(),
                                     level.of_block(noise_refiner_.size() + i)})[0];
  }
  image = atelier::split_rows(joint, text_rows.rows(), image_rows.rows()).second;

  const at::Tensor scale = level.of_end();
  image = final_linear_.forward(
      ops::norm_modulate(image, at::zeros_like(scale), scale, image_rows.rows(), kFinalNormEps));
  return to_latents(image_rows.gather(image), calls);
}

}  // namespace lumina2
