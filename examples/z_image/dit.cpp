#include "dit.h"

#include <cmath>

#include <ATen/ATen.h>

#include "atelier/named_inputs.h"
#include "atelier/nn/forward_all.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace z_image {
namespace {

constexpr int64_t kTimeChannels = 256;
constexpr int64_t kRowMultiple = 32;  // rows of texts and of images are filled up to it

int64_t padding(int64_t rows) {
  return (kRowMultiple - rows % kRowMultiple) % kRowMultiple;
}

// Samples one behind the other, each filled up.
at::Tensor filled(std::vector<at::Tensor> samples) {
  for (at::Tensor& sample : samples)
    sample = at::constant_pad_nd(sample, {0, 0, 0, padding(sample.size(0))});
  return at::cat(samples);
}

// `rows`, with `token` where a sample of one of `lengths` was filled up.
at::Tensor with_pads(const at::Tensor& rows, const Segments& all,
                     const std::vector<int64_t>& lengths, const SharedRows& shared,
                     const WeightPtr& token) {
  at::Tensor is_pad = at::zeros({all.total(), 1}, at::kBool);
  for (int64_t s = 0; s < all.count(); ++s)
    is_pad.slice(0, all.offset(s) + lengths[static_cast<size_t>(s)], all.offset(s + 1)).fill_(true);
  return at::where(shared.take(is_pad.to(rows.device())), token->draw(), rows);
}

}  // namespace

DitBlock::DitBlock(Module* parent, std::string name, const DitConfig& c, bool is_modulated)
    : Block(parent, std::move(name)),
      heads_(c.heads),
      eps_(c.norm_eps),
      attention_norm1_(this, "attention_norm1", c.width, c.norm_eps),
      attention_norm2_(this, "attention_norm2", c.width, c.norm_eps),
      ffn_norm1_(this, "ffn_norm1", c.width, c.norm_eps),
      ffn_norm2_(this, "ffn_norm2", c.width, c.norm_eps),
      to_q_(this, "attention.to_q", c.width, c.width, false),
      to_k_(this, "attention.to_k", c.width, c.width, false),
      to_v_(this, "attention.to_v", c.width, c.width, false),
      to_out_(this, "attention.to_out.0", c.width, c.width, false),
      w1_(this, "feed_forward.w1", c.width, c.mlp_width, false),
      w3_(this, "feed_forward.w3", c.width, c.mlp_width, false),
      w2_(this, "feed_forward.w2", c.mlp_width, c.width, false),
      norm_q_(this, "attention.norm_q", c.width / c.heads, 1e-5),
      norm_k_(this, "attention.norm_k", c.width / c.heads, 1e-5) {
  if (is_modulated)
    modulation_ = std::make_unique<nn::Linear>(this, "modulation", c.time_width, 4 * c.width);
}

Tensors DitBlock::forward(const Tensors& in) {
  const Segments rows = Segments::from_tensor(in[1]);
  std::vector<at::Tensor> mod(4);  // scale and gate of attention, then of the feed-forward part
  if (modulation_) {
    const bool is_prepared = in[4].size(-1) == modulation_->out_features();
    mod = (is_prepared ? in[4] : nn::of_levels(*modulation_, in[4], rows.count())).chunk(4, 1);
  }

  const at::Tensor x =
      ops::rms_norm_modulate(in[0], attention_norm1_.weight->draw(), mod[0], rows, eps_);
  const auto qkv = nn::forward_all({&to_q_, &to_k_, &to_v_}, x);
  const auto heads = [&](const at::Tensor& t) { return t.view({t.size(0), heads_, -1}); };
  const auto turned = [&](const at::Tensor& t, const nn::RMSNorm& norm) {
    return ops::norm_rope(heads(t), norm.weight->draw(), in[2], in[3],
                          ops::RopeLayout::kInterleaved, norm.eps);
  };
  const at::Tensor attended = to_out_.forward(
      ops::attention(turned(qkv[0], norm_q_), turned(qkv[1], norm_k_), heads(qkv[2]), rows));
  const auto [state, normed] =
      ops::rms_gate_residual_norm_modulate(in[0], attended, attention_norm2_.weight->draw(), mod[1],
                                           ffn_norm1_.weight->draw(), mod[2], rows, eps_);
  const auto up = nn::forward_all({&w1_, &w3_}, normed);
  return {ops::rms_gate_residual(state, w2_.forward(ops::swiglu(up[0], up[1])),
                                 ffn_norm2_.weight->draw(), mod[3], rows, eps_)};
}

Dit::Dit(const DitConfig& c)
    : Denoiser(nullptr, ""),
      config_(c),
      x_embedder_(this, "x_embedder", 4 * c.channels, c.width),
      time_in_(this, "t_embedder.0", kTimeChannels, c.time_hidden),
      time_out_(this, "t_embedder.2", c.time_hidden, c.time_width),
      text_norm_(this, "cap_embedder.0", c.text_width, c.norm_eps),
      text_embedder_(this, "cap_embedder.1", c.text_width, c.width),
      x_pad_(declare("x_pad_token", {1, c.width})),
      text_pad_(declare("cap_pad_token", {1, c.width})),
      final_modulation_(this, "final_layer.modulation", c.time_width, c.width),
      final_linear_(this, "final_layer.linear", c.width, 4 * c.channels),
      levels_(
          [scale = c.time_scale](const at::Tensor& sigma_B) {
            return nn::time_channels((1.0 - sigma_B) * scale, kTimeChannels);
          },
          time_in_, time_out_, {&final_modulation_}) {
  const auto stack = [&](auto& blocks, const char* name, int64_t count, bool is_modulated) {
    for (int64_t i = 0; i < count; ++i)
      blocks.push_back(
          std::make_unique<DitBlock>(this, std::string(name) + std::to_string(i), c, is_modulated));
  };
  stack(noise_refiner_, "noise_refiner.", c.refiners, true);
  stack(context_refiner_, "context_refiner.", c.refiners, false);
  stack(layers_, "layers.", c.layers, true);
  // Blocks read time as it is, what is behind them reads silu(time).
  for (const auto* blocks : {&noise_refiner_, &layers_}) {
    for (const auto& block : *blocks)
      levels_.add(*block, {block->modulation()}, nn::TimeActivation::kNone);
  }
}

Dit::Tables Dit::tables(const Key& key) const {
  const auto& [samples, device] = key;
  const auto count = [](int64_t n) { return at::arange(n, at::kDouble); };
  std::vector<at::Tensor> text, image;  // positions, [rows, 3]
  for (const auto& [length, height, width] : samples) {
    const at::Tensor none = at::zeros({length}, at::kDouble);
    text.push_back(at::stack({count(length) + 1, none, none}, 1));
    image.push_back(at::stack({at::full({height * width}, length + 1.0, at::kDouble),
                               count(height).repeat_interleave(width), count(width).repeat(height)},
                              1));
    image.push_back(at::zeros({padding(height * width), 3}, at::kDouble));
  }
  return {nn::axis_waves(at::cat(image), config_.axes, config_.rope_theta, device),
          nn::axis_waves(at::cat(text), config_.axes, config_.rope_theta, device)};
}

std::vector<Dit::Sample> Dit::samples(std::span<const DenoiseInputs> calls,
                                      const std::vector<int64_t>& texts) const {
  std::vector<Sample> result;
  for (const DenoiseInputs& in : calls) {
    for (int64_t b = 0; b < in.x_BCTHW.size(0); ++b) {
      const int64_t text = texts[result.size()];
      result.push_back({text + padding(text), in.x_BCTHW.size(3) / 2, in.x_BCTHW.size(4) / 2});
    }
  }
  return result;
}

std::vector<at::Tensor> Dit::patches(std::span<const DenoiseInputs> calls) const {
  std::vector<at::Tensor> samples;
  for (const DenoiseInputs& in : calls) {
    const int64_t C = config_.channels, H = in.x_BCTHW.size(3) / 2, W = in.x_BCTHW.size(4) / 2;
    for (const at::Tensor& x : in.x_BCTHW.unbind(0))
      samples.push_back(x.view({C, H, 2, W, 2}).permute({1, 3, 2, 4, 0}).reshape({H * W, 4 * C}));
  }
  return samples;
}

std::vector<at::Tensor> Dit::velocities(std::span<const DenoiseInputs> calls,
                                        const std::vector<at::Tensor>& rows) const {
  std::vector<at::Tensor> result;
  auto sample = rows.begin();
  for (const DenoiseInputs& in : calls) {
    const int64_t B = in.x_BCTHW.size(0), C = config_.channels, H = in.x_BCTHW.size(3) / 2,
                  W = in.x_BCTHW.size(4) / 2;
    std::vector<at::Tensor> own;
    for (int64_t b = 0; b < B; ++b) own.push_back((sample++)->narrow(0, 0, H * W));
    // The published model predicts clean - noise.
    result.push_back(at::stack(own)
                         .neg()
                         .view({B, H, W, 2, 2, C})
                         .permute({0, 5, 1, 3, 2, 4})
                         .reshape(in.x_BCTHW.sizes()));
  }
  return result;
}

at::Tensor Dit::denoise(const DenoiseInputs& in, BlockRunner& runner) {
  return denoise_all({&in, 1}, runner).front();
}

std::vector<at::Tensor> Dit::denoise_all(std::span<const DenoiseInputs> calls,
                                         BlockRunner& runner) {
  const CallSamples all = samples_of(calls);
  const at::Device device = calls.front().x_BCTHW.device();
  const at::ScalarType dtype = calls.front().x_BCTHW.scalar_type();
  const PackedRows text = pack_entry(all.cond, kPromptEmbeds);
  const Key key = {this->samples(calls, text.lengths), device};
  std::vector<int64_t> text_lengths, cells, image_lengths;
  for (const Sample& sample : key.first) {
    text_lengths.push_back(sample.text);
    cells.push_back(sample.height * sample.width);
    image_lengths.push_back(cells.back() + padding(cells.back()));
  }
  const Segments image_all(image_lengths), text_all(text_lengths);
  const SharedRows image_rows(image_all), text_rows(text_all);

  const Tables& tables = tables_.get(key, [&] { return this->tables(key); });
  const at::Tensor image_cos = image_rows.take(tables.image.cos),
                   image_sin = image_rows.take(tables.image.sin),
                   text_cos = text_rows.take(tables.text.cos),
                   text_sin = text_rows.take(tables.text.sin);
  const nn::NoiseLevels::Step time = levels_.step(all.sigma_B, dtype, all.levels);
  size_t modulated = 0;

  at::Tensor image = x_embedder_.forward(image_rows.take(filled(patches(calls))));
  image = with_pads(image, image_all, cells, image_rows, x_pad_);
  for (const auto& block : noise_refiner_)
    image = runner.run(*block, {image, image_rows.rows().tensor(), image_cos, image_sin,
                                time.of_block(modulated++)})[0];

  const at::Tensor texts = filled(text.values.to(dtype).split_with_sizes(text.lengths));
  at::Tensor state = text_embedder_.forward(text_norm_.forward(text_rows.take(texts)));
  state = with_pads(state, text_all, text.lengths, text_rows, text_pad_);
  for (const auto& block : context_refiner_)
    state = runner.run(*block, {state, text_rows.rows().tensor(), text_cos, text_sin})[0];

  const SharedRows both = join(image_rows, text_rows);
  const auto joined = [&](const at::Tensor& a, const at::Tensor& b) {
    return join_rows(a, image_rows.rows(), b, text_rows.rows());
  };
  Tensors inputs = {joined(image, state), both.rows().tensor(), joined(image_cos, text_cos),
                    joined(image_sin, text_sin), at::Tensor()};
  for (const auto& block : layers_) {
    inputs[4] = time.of_block(modulated++);
    inputs[0] = runner.run(*block, inputs)[0];
  }

  image = split_rows(inputs[0], image_rows.rows(), text_rows.rows()).first;
  const at::Tensor out = image_rows.gather(final_linear_.forward(
      ops::norm_modulate(image, /*shift=*/{}, time.of_end(), image_rows.rows(), 1e-6)));
  return velocities(calls, out.split_with_sizes(image_lengths));
}

}  // namespace z_image
