// Shape letters: B samples, C latent channels, T latent frames behind the reference, H and W tokens
// along height and width, D width, L tokens of a sound, N packed rows, S stretches of rows that
// hear the same.
#include "s2v.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/ops/pointwise.h"

#include "dit_block.h"

namespace wan {

using atelier::Segments;
using atelier::Tensors;
using atelier::nn::Conv1d;
using atelier::nn::Linear;
namespace ops = atelier::ops;

namespace {

constexpr int64_t kKernel = 3;  // of the convolutions over moments
constexpr double kAudioNormEps = 1e-6, kInjectorNormEps = 1e-5;
constexpr double kReferencePosition = 30.0;
enum Kind { kOfClip, kOfReference, kOfMotion, kKinds };

// What is seen of the frames before the clip, the nearest first: so many latent frames, of which
// `scale` and as many cells of patches along height and width are a token.
struct Pack {
  const char* name;
  int64_t frames, scale;
};
constexpr std::array<Pack, 3> kPacks = {{{"proj", 1, 1}, {"proj_2x", 2, 2}, {"proj_4x", 16, 4}}};

// A convolution that sees each moment and those before it, of which the first one is all.
at::Tensor causal(const Conv1d& conv, const at::Tensor& x_BCT) {
  const at::Tensor before = x_BCT.narrow(2, 0, 1).expand({-1, -1, kKernel - 1});
  return conv.forward(at::cat({before, x_BCT}, 2));
}

// [B, C, T] to [B, T, C].
at::Tensor normed(const at::Tensor& x_BCT) {
  const at::Tensor x = x_BCT.transpose(1, 2);
  return at::silu(at::layer_norm(x, {x.size(2)}, {}, {}, kAudioNormEps));
}

// `count` whole numbers from `from` to `to`, evenly spread and cut.
at::Tensor spread(int64_t from, int64_t to, int64_t count, at::Device device) {
  std::vector<double> places;
  const double step =
      count > 1 ? static_cast<double>(to - from) / static_cast<double>(count - 1) : 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const bool is_last = i > 0 && i == count - 1;
    places.push_back(std::trunc(is_last
                                    ? static_cast<double>(to)
                                    : static_cast<double>(i) * step + static_cast<double>(from)));
  }
  return at::tensor(places, at::TensorOptions().dtype(at::kDouble)).to(device);
}

}  // namespace

// Hears behind a block. Inputs: rows [N, D], offsets of stretches that hear the same, what is one
// for all tokens of each, [S, D], the tokens of all [S L, D] and their offsets, and whether each
// hears, [S, D] of ones or zeros. Output: rows.
class Injector final : public atelier::Block {
 public:
  enum Input { kRows, kOffsets, kGlobal, kTokens, kTokenOffsets, kHears };

  Injector(Module* parent, std::string name, const DitConfig& c)
      : Block(parent, std::move(name)),
        attention_(this, "injector", c),
        modulation_(this, "injector_adain_layers.linear", c.width, 2 * c.width) {}
  ~Injector() override = default;

  std::string_view kind() const override { return "audio_injector"; }

  Tensors forward(const Tensors& in) override {
    const Segments stretches = Segments::from_tensor(in[kOffsets]);
    const Tensors m = modulation_.forward(at::silu(in[kGlobal])).chunk(2, 1);
    const at::Tensor x = ops::norm_modulate(in[kRows], m[0], m[1], stretches, kInjectorNormEps);
    const at::Tensor heard =
        attention_.across(x, stretches, in[kTokens], in[kTokenOffsets], {}, {});
    return {ops::gate_residual(in[kRows], heard, in[kHears], stretches)};
  }

 private:
  Attention attention_;
  Linear modulation_;
};

AudioEncoder::AudioEncoder(Module* parent, std::string name, const DitConfig& c)
    : Module(parent, std::move(name)),
      tokens_(c.audio_tokens),
      weights_(declare("weights", {1, c.audio_states, 1, 1}, kFloat32)),
      padding_(declare("encoder.padding_tokens", {1, 1, 1, c.width})),
      local_(this, "encoder.conv1_local.conv", c.audio_width, c.width / 4 * c.audio_tokens,
             kKernel),
      global_(this, "encoder.conv1_global.conv", c.audio_width, c.width / 4, kKernel),
      second_(this, "encoder.conv2.conv", c.width / 4, c.width / 2, kKernel, {.stride = 2}),
      third_(this, "encoder.conv3.conv", c.width / 2, c.width, kKernel, {.stride = 2}),
      final_(this, "encoder.final_linear", c.width, c.width) {}

AudioEncoder::~AudioEncoder() = default;

// [1, C, moments] to [parts, latent frames, D], without those before the clip.
at::Tensor AudioEncoder::encoded(const Conv1d& first, const at::Tensor& x, int64_t parts) const {
  const at::Tensor begun = normed(causal(first, x).view({parts, -1, x.size(2)}));
  const at::Tensor halved = normed(causal(second_, begun.transpose(1, 2)));
  const at::Tensor ended = normed(causal(third_, halved.transpose(1, 2)));
  return ended.slice(1, kMotionLatentFrames);
}

std::pair<at::Tensor, at::Tensor> AudioEncoder::forward(const at::Tensor& states) const {
  const at::Tensor weights = at::silu(weights_->draw()).view({-1, 1, 1});
  const at::Tensor mixed = (states.to(at::kFloat) * (weights / weights.sum())).sum(0);
  const at::Tensor x = at::cat({mixed.narrow(0, 0, 1).expand({kMotionFrames, -1}), mixed})
                           .to(local_.weight->draw().scalar_type())
                           .t()
                           .unsqueeze(0);
  const at::Tensor tokens = encoded(local_, x, tokens_).transpose(0, 1);  // [T, L, D]
  const at::Tensor padding = padding_->draw()[0].expand({tokens.size(0), -1, -1});
  return {final_.forward(encoded(global_, x, 1)[0]), at::cat({tokens, padding}, 1)};
}

Speech::Speech(atelier::nn::Module* parent, const DitConfig& c)
    : parent_(parent),
      config_(c),
      pose_(parent, "cond_encoder", c.channels, c.width, {1, c.patch, c.patch},
            {.stride = {1, c.patch, c.patch}}),
      audio_(parent, "casual_audio_encoder", c),
      kinds_(parent, "trainable_cond_mask", kKinds, c.width) {
  for (const Pack& pack : kPacks) {
    const std::array<int64_t, 3> size = {pack.scale, pack.scale * c.patch, pack.scale * c.patch};
    packs_.push_back(std::make_unique<atelier::nn::Conv3d>(
        parent, std::string("frame_packer.") + pack.name, c.channels, c.width, size,
        atelier::ops::Conv3dOptions{.stride = size}));
  }
}

Speech::~Speech() = default;

void Speech::add_injector(int64_t index) {
  if (!std::ranges::binary_search(config_.audio_blocks, index)) return;
  const std::string name = "audio_injector." + std::to_string(injectors_.size());
  injectors_.emplace_back(index, std::make_unique<Injector>(parent_, name, config_));
}

std::vector<atelier::ConditioningEntry> Speech::entries() const {
  return {
      {.name = kAudioStates}, {.name = kAudioFrames}, {.name = kPose}, {.name = kMotionLatents}};
}

// [1, D]
at::Tensor Speech::kind(int64_t number, at::ScalarType dtype) const {
  return kinds_.weight->draw().narrow(0, number, 1).to(dtype);
}

std::vector<Stretch> Speech::behind(const atelier::DenoiseInputs& in, int64_t sample) {
  const auto& cond = *in.cond[static_cast<size_t>(sample)];
  if (!cond.contains(kMotionLatents)) return {};
  const at::Tensor& x = in.x_BCTHW;
  const at::Tensor motion =
      atelier::named_tensor(cond, kMotionLatents, 4).to(x.scalar_type()).unsqueeze(0);
  if (motion.size(2) != kMotionLatentFrames || motion.sizes().slice(3) != x.sizes().slice(3)) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "motion_latents of shape " + atelier::shape_text(motion[0]) +
                             ", they do not fit latents of shape " + atelier::shape_text(x));
  }
  const int64_t height = x.size(3) / config_.patch, width = x.size(4) / config_.patch;
  const at::Device device = x.device();
  std::vector<Stretch> stretches;
  int64_t end = kMotionLatentFrames;
  for (size_t i = 0; i < kPacks.size(); ++i) {
    const auto [name, frames, scale] = kPacks[i];
    const at::Tensor rows = packs_[i]->forward(motion.narrow(2, end - frames, frames));
    const int64_t H = rows.size(3), W = rows.size(4), before = kMotionLatentFrames - end + frames;
    end -= frames;
    stretches.push_back({.rows_LD = rows.flatten(2)[0].t() + kind(kOfMotion, x.scalar_type()),
                         .angles =
                             [=, this, frames = frames, scale = scale] {
                               return token_angles(
                                   spread(-before, frames - before - 1, frames / scale, device),
                                   spread(0, height - 1, H, device),
                                   spread(0, width - 1, W, device), config_.head_dim());
                             },
                         .is_clean = true});
  }
  return stretches;
}

at::Tensor Speech::frame_positions(const at::Tensor& counted_T) const {
  return at::cat({at::full({1}, kReferencePosition, counted_T.options()),
                  counted_T.narrow(0, 0, counted_T.size(0) - 1)});
}

// What is added to the tokens of the latents, [B (1 + T) H W, D].
at::Tensor Speech::posed(const Pass& pass) const {
  const at::Tensor& x = pass.in.x_BCTHW;
  std::vector<int64_t> sizes = x.sizes().slice(1).vec();
  sizes[1] -= 1;
  const int64_t cells = pass.height * pass.width;
  Tensors rows;
  for (const atelier::Conditioning* cond : pass.in.cond) {
    at::Tensor pose = at::zeros(sizes, x.options());
    if (cond->contains(kPose)) pose = atelier::named_tensor(*cond, kPose, 4).to(x.scalar_type());
    if (pose.sizes() != sizes) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           "pose of shape " + atelier::shape_text(pose) +
                               ", it does not fit latents of shape " + atelier::shape_text(x));
    }
    rows.push_back(kind(kOfReference, x.scalar_type()).expand({cells, -1}));
    if (sizes[1] == 0) continue;
    const at::Tensor tokens = pose_.forward(pose.unsqueeze(0)).flatten(2)[0].t();
    rows.push_back(tokens + kind(kOfClip, x.scalar_type()));
  }
  return at::cat(rows);
}

namespace {

// States of the frames that are heard, [states, 4 T, width].
at::Tensor heard_states(const atelier::Conditioning& cond, const DitConfig& c, int64_t frames,
                        const at::TensorOptions& options) {
  if (!cond.contains(kAudioStates))
    return at::zeros({c.audio_states, frames, c.audio_width}, options);
  const at::Tensor& states = atelier::named_tensor(cond, kAudioStates, 3);
  const at::Tensor& numbers = atelier::named_tensor(cond, kAudioFrames, 1);
  if (states.size(0) != c.audio_states || states.size(2) != c.audio_width ||
      numbers.size(0) != frames) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "audio_states of shape " + atelier::shape_text(states) + " and " +
                             std::to_string(numbers.size(0)) + " audio_frames, [" +
                             std::to_string(c.audio_states) + ", frames, " +
                             std::to_string(c.audio_width) + "] and " + std::to_string(frames) +
                             " expected",
                         "pass the audio encoder that is published with the DiT");
  }
  const at::Tensor there = at::lt(numbers, states.size(1)).to(states.scalar_type());
  return states.index_select(1, numbers.clamp(0, states.size(1) - 1)) * there.view({1, -1, 1});
}

}  // namespace

// What injectors read beside the rows: a stretch for each latent frame, and one that hears nothing
// for what stands around them.
void Speech::hear(const Pass& pass) {
  const auto options = pass.in.x_BCTHW.options();
  const int64_t T = pass.frames - 1, cells = pass.height * pass.width;
  const at::Tensor none = at::zeros({1, config_.width}, options);
  std::vector<int64_t> lengths, tokens_of;
  Tensors global, tokens, hears;
  const auto add = [&](int64_t frames, int64_t rows, int64_t tokens_there, const at::Tensor& of) {
    lengths.insert(lengths.end(), static_cast<size_t>(frames), rows);
    tokens_of.insert(tokens_of.end(), static_cast<size_t>(frames), tokens_there);
    global.push_back(of);
    hears.push_back((tokens_there > 0 ? at::ones_like(none) : none).expand({frames, -1}));
  };
  for (size_t b = 0; b < pass.in.cond.size(); ++b) {
    add(1, pass.front[b] + cells, 0, none);
    if (T > 0) {
      const auto [of_all, each] =
          audio_.forward(heard_states(*pass.in.cond[b], config_, kFrameStride * T, options));
      add(T, cells, each.size(1), of_all.to(options.dtype().toScalarType()));
      tokens.push_back(each.flatten(0, 1));
    }
    if (pass.behind[b] > 0) add(1, pass.behind[b], 0, none);
  }
  heard_ = {pass.rows.cut(Segments(lengths)).tensor(), at::cat(global),
            tokens.empty() ? none.narrow(0, 0, 0) : at::cat(tokens), Segments(tokens_of).tensor(),
            at::cat(hears)};
}

void Speech::begin(Pass& pass) {
  pass.x = pass.x + pass.placed(posed(pass));
  hear(pass);
}

void Speech::after(int64_t index, Pass& pass) {
  const auto found =
      std::ranges::find(injectors_, index, [](const auto& one) { return one.first; });
  if (found == injectors_.end()) return;
  Tensors inputs = {std::move(pass.x)};
  inputs.insert(inputs.end(), heard_.begin(), heard_.end());
  pass.x = pass.runner.run(*found->second, inputs)[0];
  if (index == injectors_.back().first) heard_.clear();
}

}  // namespace wan
