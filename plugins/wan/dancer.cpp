// Shape letters: B samples, C latent channels, T frames, H and W height and width in tokens, D
// width, d head width, n rows of music, N packed rows of all samples.
#include "dancer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/component_family.h"
#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

namespace wan {

using atelier::Segments;
using atelier::Tensors;
using atelier::nn::Module;
namespace ops = atelier::ops;

namespace {

constexpr double kTurnBase = 10000;
constexpr double kMusicNormEps = 1e-5;
constexpr int64_t kMusicHeads = 4;
// Behind these blocks music is added, where there are so many.
constexpr std::array<int64_t, 8> kMusicBlocks = {0, 4, 8, 12, 16, 20, 24, 27};
// Encoded music is brought to so many rows of so many columns first, whatever is made.
constexpr int64_t kMusicRows = 149, kMusicColumns = 4800;

constexpr const char* kInjected = "music_injector.injector.";

// Weights by which `from` values become `to`, each in between its neighbours: [from, to] float64,
// on the CPU.
at::Tensor linear_weights(int64_t from, int64_t to) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const double step = static_cast<double>(from) / static_cast<double>(to);
  const at::Tensor places = at::arange(to, options).add(0.5).mul(step).sub(0.5).clamp_min(0);
  const at::Tensor first = places.to(at::kLong), second = (first + 1).clamp_max(from - 1);
  const at::Tensor share = places - first;
  return at::zeros({from, to}, options)
      .scatter_add_(0, first.unsqueeze(0), (1 - share).unsqueeze(0))
      .scatter_add_(0, second.unsqueeze(0), share.unsqueeze(0));
}

// Weights by which `from` values become `across`, and these `to`, each in between its neighbours:
// [from, to] float32.
at::Tensor weights_of_spread(int64_t from, int64_t across, int64_t to, at::Device device) {
  const at::Tensor first = linear_weights(from, across).matmul(linear_weights(across, to));
  return first.to(at::kFloat).to(device);
}

}  // namespace

// A layer of the music's encoder. Inputs: rows [N, width], cosines and sines of their places, and
// offsets of the samples' rows. Output: rows.
class MusicLayer final : public atelier::Block {
 public:
  MusicLayer(Module* parent, std::string name, const DitConfig& c)
      : Block(parent, std::move(name)),
        norm1_(this, "norm1", c.music_width, kMusicNormEps, kFloat32),
        in_(this, "self_attn.in_proj", c.music_width, 3 * c.music_width),
        out_(this, "self_attn.out_proj", c.music_width, c.music_width),
        norm2_(this, "norm2", c.music_width, kMusicNormEps, kFloat32),
        up_(this, "linear1", c.music_width, c.music_mlp_width),
        down_(this, "linear2", c.music_mlp_width, c.music_width) {}

  std::string_view kind() const override { return "music_encoder"; }
  Tensors forward(const Tensors& in) override;

 private:
  atelier::nn::LayerNorm norm1_;
  atelier::nn::Linear in_, out_;
  atelier::nn::LayerNorm norm2_;
  atelier::nn::Linear up_, down_;
};

Tensors MusicLayer::forward(const Tensors& in) {
  const Segments rows = Segments::from_tensor(in[3]);
  const at::Tensor normed = norm1_.forward(in[0]);
  // Whole rows are turned, in front of the layer that makes queries and keys of them.
  const at::Tensor turned =
      ops::norm_rope(normed.unsqueeze(1), {}, in[1], in[2], ops::RopeLayout::kInterleaved);
  const auto heads = [](const at::Tensor& x) { return x.unflatten(-1, {kMusicHeads, -1}); };
  const Tensors qk = in_.forward(turned.squeeze(1)).chunk(3, -1);
  const at::Tensor v = in_.forward(normed).chunk(3, -1)[2];
  const at::Tensor x =
      in[0] + out_.forward(ops::attention(heads(qk[0]), heads(qk[1]), heads(v), rows));
  return {x + down_.forward(at::gelu(up_.forward(norm2_.forward(x))))};
}

// An attention to one row, which is therefore that row's value: queries, keys and their norms are
// in the file and change nothing. Input: rows. Output: what each is to those that look at it.
class MusicInjector final : public atelier::Block {
 public:
  MusicInjector(Module* parent, std::string name, const DitConfig& c)
      : Block(parent, std::move(name)),
        q_(this, "q", c.width, c.width),
        k_(this, "k", c.width, c.width),
        v_(this, "v", c.width, c.width),
        o_(this, "o", c.width, c.width),
        norm_q_(this, "norm_q", c.width, c.norm_eps),
        norm_k_(this, "norm_k", c.width, c.norm_eps) {}

  std::string_view kind() const override { return "music_injector"; }
  Tensors forward(const Tensors& in) override { return {o_.forward(v_.forward(in[0]))}; }

 private:
  atelier::nn::Linear q_, k_, v_, o_;
  atelier::nn::RMSNorm norm_q_, norm_k_;
};

Dance::Dance(Module* parent, const DitConfig& c)
    : parent_(parent),
      config_(c),
      projection_(parent, "music_projection", c.music_channels, c.music_width),
      patches_(parent, "patch_embedding_global", c.channels + c.given_channels, c.width,
               {1, c.patch, c.patch}, {.stride = {1, c.patch, c.patch}}),
      head_(parent, "head_global", c),
      reference_(parent, "img_emb_refimage", c),
      unused_(parent, "ref_conv", c.channels, c.width, c.patch, {.stride = c.patch}) {
  for (int64_t i = 0; i < c.music_layers; ++i)
    layers_.push_back(
        std::make_unique<MusicLayer>(parent, "music_encoder." + std::to_string(i), c));
}

Dance::~Dance() = default;

void Dance::declare_behind(int64_t index) {
  if (std::ranges::find(kMusicBlocks, index) == kMusicBlocks.end()) return;
  const std::string name = kInjected + std::to_string(injectors_.size());
  injectors_.emplace_back(index, std::make_unique<MusicInjector>(parent_, name, config_));
}

bool Dance::is_slow(const atelier::DenoiseInputs& in) {
  const auto slow = [](const atelier::Conditioning* cond) { return cond->contains(kFramePlaces); };
  const bool any = std::ranges::any_of(in.cond, slow);
  if (any && !std::ranges::all_of(in.cond, slow)) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "samples of 30 frames a second and of another rate in one batch",
                         "give the rows of a batch one wantodance_fps, or use --batch_size 1");
  }
  return any;
}

at::Tensor Dance::patches(const at::Tensor& x_BCTHW) const {
  return patches_.forward(x_BCTHW).permute({0, 2, 3, 4, 1}).flatten(0, 3);
}

// The blocks look at who dances as at an image. What the image encoder saw of the first key frame
// stands in front of the prompt, as the model was trained.
void Dance::show_reference(Pass& pass) const {
  const auto place = [](DitBlock::Input input) { return static_cast<size_t>(input - 1); };
  std::vector<at::Tensor>& context = pass.context;
  const atelier::PackedRows shown = atelier::pack_entry(pass.in.cond, kReferenceEmbeds);
  const Segments keys = Segments::from_tensor(context[place(DitBlock::kImageOffsets)]);
  const Segments texts = Segments::from_tensor(context[place(DitBlock::kTextOffsets)]);
  context[place(DitBlock::kText)] = atelier::join_rows(context[place(DitBlock::kImage)], keys,
                                                       context[place(DitBlock::kText)], texts);
  context[place(DitBlock::kTextOffsets)] = atelier::join(keys, texts).tensor();
  context[place(DitBlock::kImage)] = reference_.forward(shown, pass.in.x_BCTHW.scalar_type());
  context[place(DitBlock::kImageOffsets)] = shown.rows.tensor();
}

// Cosines and sines of a frame between two positions lie on the line between theirs, not on the
// circle.
void Dance::turn_by_places(Pass& pass) const {
  const int64_t d = config_.head_dim(), channels = d - 2 * (d / 6 * 2);
  Tensors cosines, sines;
  for (const atelier::Conditioning* cond : pass.in.cond) {
    const at::Tensor places = atelier::named_tensor(*cond, kFramePlaces, 2).to(at::kDouble);
    if (places.size(0) != pass.frames || places.size(1) != 3) {
      throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                           "frame_places of shape " + atelier::shape_text(places) + ", [" +
                               std::to_string(pass.frames) + ", 3] expected");
    }
    const auto angles = [&](int64_t column) {
      return atelier::nn::rope_angles(places.select(1, column), channels, kTurnBase);
    };
    const at::Tensor low = angles(0), high = angles(1), near = places.narrow(1, 2, 1);
    const auto of_tokens = [&](const at::Tensor& a, const at::Tensor& b) {
      return at::lerp(a, b, near.expand_as(a))
          .to(at::kFloat)
          .unsqueeze(1)
          .expand({-1, pass.height * pass.width, -1})
          .flatten(0, 1);
    };
    cosines.push_back(of_tokens(at::cos(low), at::cos(high)));
    sines.push_back(of_tokens(at::sin(low), at::sin(high)));
  }
  const auto exchange = [&](DitBlock::Input input, const Tensors& of_samples) {
    at::Tensor& waves = pass.context[static_cast<size_t>(input - 1)];
    waves = at::cat({pass.placed(at::cat(of_samples)), waves.slice(1, channels / 2)}, 1);
  };
  exchange(DitBlock::kCos, cosines);
  exchange(DitBlock::kSin, sines);
}

const Dance::Spread& Dance::spread(int64_t from, int64_t to, at::Device device) {
  return spreads_.get({{from, to}, device}, [&] {
    return Spread{weights_of_spread(from, kMusicRows, to, device).t().contiguous(),
                  weights_of_spread(config_.music_width, kMusicColumns, config_.width, device)};
  });
}

// A row for each beat of each sample, [B T kBeatsAFrame, D].
at::Tensor Dance::encoded_music(Pass& pass) {
  const atelier::PackedRows music = atelier::pack_entry(pass.in.cond, kMusic);
  const at::ScalarType dtype = pass.in.x_BCTHW.scalar_type();
  const at::Device device = pass.in.x_BCTHW.device();
  const atelier::nn::Waves waves =
      atelier::nn::row_waves(music.rows, config_.music_width, kTurnBase, device);
  at::Tensor x = projection_.forward(music.values.to(dtype));
  for (const auto& layer : layers_)
    x = pass.runner.run(*layer, {x, waves.cos, waves.sin, music.rows.tensor()})[0];
  Tensors beats;
  for (int64_t b = 0; b < music.rows.count(); ++b) {
    const int64_t n = music.rows.length(b);
    const Spread& by = spread(n, pass.frames * kBeatsAFrame, device);
    const at::Tensor rows = x.narrow(0, music.rows.offset(b), n).to(at::kFloat);
    beats.push_back(at::matmul(by.rows, rows).matmul(by.columns).to(dtype));
  }
  return at::cat(beats);
}

void Dance::begin(Pass& pass) {
  if (pass.height * pass.width % kBeatsAFrame != 0) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "latent frames of " + std::to_string(pass.height) + " x " +
                             std::to_string(pass.width) + " tokens cannot be cut into " +
                             std::to_string(kBeatsAFrame) + " beats of music",
                         "make (height / 16) (width / 16) a multiple of 8, as 1280 x 720 has it");
  }
  show_reference(pass);
  if (is_slow(pass.in)) turn_by_places(pass);
  music_ = encoded_music(pass);
}

bool Dance::replace(int64_t index, DitBlock& block, Pass& pass) {
  const auto skips = [](const atelier::Conditioning* cond) { return cond->contains(kSkipsBlock); };
  if (index != kSkippedBlock || std::ranges::none_of(pass.in.cond, skips)) return false;
  if (std::ranges::all_of(pass.in.cond, skips)) return true;
  Tensors inputs = {pass.x};
  inputs.insert(inputs.end(), pass.context.begin(), pass.context.end());
  Tensors stays;
  const int64_t count = pass.frames * pass.height * pass.width;
  const auto options = at::TensorOptions(pass.x.device()).dtype(at::kBool);
  for (const atelier::Conditioning* cond : pass.in.cond)
    stays.push_back(at::full({count, 1}, skips(cond), options));
  pass.x = at::where(pass.placed(at::cat(stays)), pass.x, pass.runner.run(block, inputs)[0]);
  return true;
}

void Dance::after(int64_t index, Pass& pass) {
  for (const auto& [behind, injector] : injectors_) {
    if (behind != index) continue;
    const at::Tensor beats = pass.runner.run(*injector, {music_})[0];
    const int64_t tokens = pass.height * pass.width / kBeatsAFrame, all = beats.size(0) * tokens;
    const at::Tensor of_tokens = beats.unsqueeze(1).expand({-1, tokens, -1});
    pass.x = pass.x.size(0) == all ? (pass.x.unflatten(0, {-1, tokens}) + of_tokens).flatten(0, 1)
                                   : pass.x + pass.placed(of_tokens.flatten(0, 1));
  }
  if (index + 1 == config_.layers) music_ = at::Tensor();
}

bool dances(const atelier::PartView& view) {
  return view.contains(std::string(kInjected) + "0.v.weight");
}

void read_dance(const atelier::PartView& view, DitConfig& c) {
  c.music_channels = view.dim("music_projection.weight", 1);
  c.music_width = view.dim("music_projection.weight", 0);
  c.music_mlp_width = view.dim("music_encoder.0.linear1.weight", 0);
  c.music_layers = view.block_count("music_encoder.{}.linear1.weight");
  const int64_t injectors = view.block_count(std::string(kInjected) + "{}.v.weight");
  const int64_t wanted =
      std::ranges::count_if(kMusicBlocks, [&](int64_t block) { return block < c.layers; });
  if (c.music_channels != kMusicChannels || c.music_width % (2 * kMusicHeads) != 0)
    view.refuse("has another music encoder");
  if (injectors != wanted) {
    view.refuse("adds music behind " + std::to_string(injectors) + " blocks, behind " +
                std::to_string(wanted) + " of " + std::to_string(c.layers) + " is published");
  }
}

std::string dance_name(const std::string& path) {
  static constexpr atelier::Renamed kNames[] = {{".in_proj.weight", ".in_proj_weight"},
                                                {".in_proj.bias", ".in_proj_bias"}};
  return atelier::renamed(path, kNames);
}

std::optional<at::Tensor> frame_places(int64_t frames, double fps) {
  if (std::floor(fps + 0.5) == static_cast<double>(kMusicRate)) return std::nullopt;
  const double apart = static_cast<double>(kMusicRate) / (fps + 1e-6);
  const auto last = static_cast<int64_t>(apart * static_cast<double>(frames) + 0.5) - 1;
  at::Tensor places = at::zeros({frames, 3}, at::kFloat);
  auto rows = places.accessor<float, 2>();
  for (int64_t i = 1; i < frames; ++i) {
    const double place =
        i + 1 == frames ? static_cast<double>(last) : static_cast<double>(i) * apart;
    const double low = std::floor(place);
    rows[i][0] = static_cast<float>(low);
    rows[i][1] = static_cast<float>(std::min(low + 1.0, static_cast<double>(last)));
    rows[i][2] = static_cast<float>(place - low);
  }
  return places;
}

}  // namespace wan
