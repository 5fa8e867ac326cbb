// Shape letters: B samples, C latent channels, T frames, H and W latent height and width, D width,
// d head width, N packed rows of all samples.
#include "dit.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "atelier/error.h"
#include "atelier/nn/level_rows.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace lumina2 {

using atelier::Segments;
using atelier::Tensors;
using atelier::nn::Linear;
using atelier::nn::Module;
using atelier::nn::RMSNorm;
namespace ops = atelier::ops;

namespace {

constexpr int64_t kTimeChannels = 256;
constexpr double kFinalNormEps = 1e-6, kQkNormEps = 1e-5;
constexpr double kRopeTheta = 10000;
constexpr size_t kRopeTables = 4;  // prompts with and without text, for two sizes

// [N, heads * d] to [N, heads, d].
at::Tensor heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1) / head_dim, head_dim});
}

// cos and sin of 1 - sigma at falling frequencies: [B, 256] float32.
at::Tensor time_channels(const at::Tensor& sigma_B) {
  const int64_t half = kTimeChannels / 2;
  const at::Tensor frequency = at::exp(at::arange(half, sigma_B.options()) *
                                       (-std::log(10000.0) / static_cast<double>(half)));
  const at::Tensor angle = (1 - sigma_B).unsqueeze(1) * frequency;
  return at::cat({at::cos(angle), at::sin(angle)}, 1);
}

// Angles of positions 0 to count - 1 on an axis that carries `channels` of a head: [count,
// channels / 2] float64.
at::Tensor angles(int64_t count, int64_t channels) {
  const at::Tensor exponent =
      at::arange(0, channels, 2, at::kDouble) / static_cast<double>(channels);
  return at::outer(at::arange(count, at::kDouble), at::reciprocal(at::pow(kRopeTheta, exponent)));
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
    const at::Tensor mlp = w2_.forward(ops::swiglu(w1_.forward(normed), w3_.forward(normed)));
    return {ops::rms_gate_residual(sum, mlp, ffn_norm2_.weight->draw(), m.gate2, rows, eps)};
  }

  // What stands for silu(time) in kLevel, a row for each level.
  at::Tensor level_rows(const at::Tensor& time_groups, int64_t levels) const {
    return atelier::nn::of_all_levels(*modulation_, time_groups, levels);
  }

  std::vector<atelier::WeightPtr> level_weights() const {
    return {modulation_->weight, modulation_->bias};
  }

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
    : Module(nullptr, "dit"),
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
      final_linear_(this, "final_layer.linear", c.width, c.channels * c.patch * c.patch) {}

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

std::vector<atelier::Block*> Dit::blocks() {
  std::vector<atelier::Block*> result;
  for (const auto* part : {&context_refiner_, &noise_refiner_, &layers_}) {
    for (const auto& block : *part) result.push_back(block.get());
  }
  return result;
}

const Dit::Rope& Dit::rope(int64_t height, int64_t width, const std::vector<int64_t>& lengths,
                           at::Device device) {
  const auto found = std::find_if(ropes_.begin(), ropes_.end(), [&](const Rope& r) {
    return r.height == height && r.width == width && r.lengths == lengths && r.device == device;
  });
  if (found != ropes_.end()) {
    std::rotate(found, found + 1, ropes_.end());
    return ropes_.back();
  }
  // Made where autograd may save them, whatever mode the caller is in.
  const c10::InferenceMode normal(false);
  const c10::NoGradGuard no_grad;
  const auto [text_axis, row_axis, column_axis] = config_.axes;

  // Text counts along the first axis; the whole picture stands behind its sample's text there, and
  // counts rows and columns along the others.
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const at::Tensor along_angles = angles(longest + 1, text_axis);
  const at::Tensor row_angles = angles(height, row_axis);
  const at::Tensor column_angles = angles(width, column_axis);
  Rope r{height, width, lengths, device, {}, {}, {}, {}, {}, {}};
  const auto place = [&](at::Tensor (*wave)(const at::Tensor&), at::Tensor& of_image,
                         at::Tensor& of_text, at::Tensor& of_both) {
    const auto values = [&](const at::Tensor& angle) {
      return wave(angle).to(at::kFloat).to(device);
    };
    const at::Tensor along = values(along_angles);
    const at::Tensor rows = values(row_angles).unsqueeze(1).expand({height, width, -1});
    const at::Tensor columns = values(column_angles).unsqueeze(0).expand({height, width, -1});
    const at::Tensor grid = at::cat({rows, columns}, 2).view({height * width, -1});
    const at::Tensor still = values(at::zeros({1, grid.size(1)}));  // where nothing turns
    Tensors text, image, both;
    for (const int64_t length : lengths) {
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
  if (ropes_.size() == kRopeTables) ropes_.erase(ropes_.begin());
  ropes_.push_back(std::move(r));
  return ropes_.back();
}

at::Tensor Dit::time_rows(const at::Tensor& sigma_B) const {
  const at::Tensor channels = time_channels(sigma_B).to(dtype());
  const auto embed = [&](const at::Tensor& rows) {
    return at::silu(time_out_.forward(at::silu(time_in_.forward(rows))));
  };
  if (at::GradMode::is_enabled()) return embed(channels);
  Tensors groups;
  for (const at::Tensor& group : atelier::nn::level_groups(channels).unbind(0))
    groups.push_back(embed(group));
  return at::stack(groups);
}

std::vector<DitBlock*> Dit::modulated_blocks() const {
  std::vector<DitBlock*> result;
  for (const auto* part : {&noise_refiner_, &layers_}) {
    for (const auto& block : *part) result.push_back(block.get());
  }
  return result;
}

std::vector<atelier::WeightPtr> Dit::level_weights() const {
  std::vector<atelier::WeightPtr> result;
  for (const DitBlock* block : modulated_blocks()) {
    for (atelier::WeightPtr& weight : block->level_weights()) result.push_back(std::move(weight));
  }
  return result;
}

void Dit::prepare_levels(std::span<const float> sigmas, atelier::BlockRunner& runner) {
  forget_levels();
  if (sigmas.empty()) return;
  // Made where autograd may save them, whatever mode the caller is in.
  const c10::InferenceMode normal(false);
  const c10::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(sigmas.size());
  const at::Device device = time_in_.weight->draw().device();
  const at::Tensor time = time_rows(at::tensor(sigmas, at::kFloat).to(device));
  Levels levels{
      .count = count, .blocks = {}, .end = atelier::nn::of_levels(final_modulation_, time, count)};
  for (DitBlock* block : modulated_blocks()) {
    const std::shared_ptr<void> held = runner.hold(*block);
    levels.blocks.push_back(block->level_rows(time, count));
  }
  levels_ = std::move(levels);
}

at::Tensor Dit::forward(const at::Tensor& x_BCTHW, const at::Tensor& sigma_B,
                        std::span<const at::Tensor> prompts, std::optional<int64_t> level,
                        atelier::BlockRunner& runner) {
  const int64_t B = x_BCTHW.size(0), C = x_BCTHW.size(1), p = config_.patch;
  const int64_t H = x_BCTHW.size(3) / p, W = x_BCTHW.size(4) / p;

  std::vector<int64_t> lengths;
  for (const at::Tensor& prompt : prompts) lengths.push_back(prompt.size(0));
  const Segments image_rows = Segments::uniform(B, H * W);
  const Segments text_rows(lengths);
  const Segments rows = atelier::join(text_rows, image_rows);
  const Rope& table = rope(H, W, lengths, x_BCTHW.device());
  if (level && (*level < 0 || *level >= levels_.count)) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "noise level " + std::to_string(*level) + " is not one of the " +
                             std::to_string(levels_.count) + " that are prepared");
  }
  const auto prepared = [&](const at::Tensor& rows) {
    return rows.narrow(0, *level, 1).expand({B, -1}).contiguous();
  };
  const at::Tensor time = level ? at::Tensor() : time_rows(sigma_B);
  const auto level_of = [&](size_t block) {
    return level ? prepared(levels_.blocks[block]) : time;
  };

  const at::Tensor packed =
      prompts.size() == 1 ? prompts[0] : at::cat(Tensors(prompts.begin(), prompts.end()), 0);
  at::Tensor text = caption_in_.forward(caption_norm_.forward(packed.to(x_BCTHW.scalar_type())));
  for (const auto& block : context_refiner_) {
    text = runner.run(*block, {text, table.text_cos, table.text_sin, text_rows.tensor()})[0];
  }

  // Values of a token: its rows, its columns, then channels.
  at::Tensor image = x_embedder_.forward(x_BCTHW.reshape({B, C, H, p, W, p})
                                             .permute({0, 2, 4, 3, 5, 1})
                                             .reshape({B * H * W, p * p * C}));
  for (size_t i = 0; i < noise_refiner_.size(); ++i) {
    image = runner.run(*noise_refiner_[i], {image, table.image_cos, table.image_sin,
                                            image_rows.tensor(), level_of(i)})[0];
  }

  at::Tensor joint = atelier::join_rows(text, text_rows, image, image_rows);
  text.reset(), image.reset();
  for (size_t i = 0; i < layers_.size(); ++i) {
    joint = runner.run(*layers_[i], {joint, table.cos, table.sin, rows.tensor(),
                                     level_of(noise_refiner_.size() + i)})[0];
  }
  image = atelier::split_rows(joint, text_rows, image_rows).second;

  const at::Tensor scale =
      level ? prepared(levels_.end) : atelier::nn::of_levels(final_modulation_, time, B);
  image = final_linear_.forward(
      ops::norm_modulate(image, at::zeros_like(scale), scale, image_rows, kFinalNormEps));
  // The model goes from noise to the picture.
  return image.neg()
      .view({B, H, W, p, p, C})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({B, C, 1, H * p, W * p});
}

}  // namespace lumina2
