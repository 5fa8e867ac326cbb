// A family that is none of the published ones. Its variant "long" makes clips piece by piece beside
// a pose clip and a sound; its variant "layers" makes several pictures with transparency of one
// result. It is written in the frame of the SDK alone; nothing outside this folder knows it.
#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/component_model.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"
#include "atelier/nn/waves.h"
#include "atelier/ops/attention.h"
#include "atelier/plugin.h"

#include "tests/support/byte_encoder.h"

namespace {
using namespace atelier;
using test::Bytes;
using test::StackConfig;
using test::WidthConfig;

constexpr int64_t kChannels = 8, kStride = 4, kHeadDim = 16, kTimeChannels = 32;
constexpr int64_t kPieceFrames = 5, kShared = 1;
constexpr double kFps = 8.0;
constexpr std::string_view kVariants[] = {"long", "layers"};
constexpr const char *kPose = "pose", *kSound = "sound", *kBefore = "before", *kMood = "mood";

constexpr InputSpec kInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true, .help = "what is to be seen"},
    {.name = "mood", .kind = InputKind::kText, .help = "beside the prompt, on each branch"},
    {.name = "negative_mood",
     .kind = InputKind::kText,
     .use = InputUse::kGenerate,
     .help = "the mood of the negative branch",
     .negative_of = "mood"},
    {.name = "pose",
     .kind = InputKind::kVideo,
     .use = InputUse::kGenerate,
     .variants = "long",
     .help = "a clip to follow",
     .along_clip = true,
     .tail = Tail::kMirror},
    {.name = "sound",
     .kind = InputKind::kAudio,
     .use = InputUse::kGenerate,
     .variants = "long",
     .help = "a sound to move with",
     .channels = 1,
     .along_clip = true,
     .tail = Tail::kZero,
     .sample_rate = 800,
     .is_soundtrack = true},
    {.name = "layer_num",
     .kind = InputKind::kInteger,
     .variants = "layers",
     .help = "how many layers lie on each other"},
    {.name = "image",
     .kind = InputKind::kImage,
     .required = true,
     .use = InputUse::kTrain,
     .help = "the picture of all layers, then each layer",
     .role = InputRole::kTarget,
     .max_count = 9,
     .channels = 4},
};
constexpr std::string_view kTextEncoder[] = {"text_encoder"}, kVae[] = {"vae"},
                           kPrompt[] = {"prompt"}, kMoods[] = {"mood"},
                           kBeside[] = {"pose", "sound", "prompt"}, kImage[] = {"image"};
constexpr EncodeStage kStages[] = {
    {.name = "text", .components = kTextEncoder, .inputs = kPrompt},
    {.name = "mood", .components = kTextEncoder, .inputs = kMoods, .per_branch = true},
    {.name = "beside",
     .components = kVae,
     .inputs = kBeside,
     .sees_target = true,
     .variants = "long",
     .per_piece = true},
    {.name = "latents", .components = kVae, .inputs = kImage},
};
constexpr ScheduleDefaults kSchedules[] = {{.num_inference_steps = 3}};

struct VaeConfig {
  int64_t pixel_channels;
  template <class Fields>
  void visit(Fields&& fields) {
    fields("pixel_channels", pixel_channels);
  }
};

// Each frame alone.
struct Vae final : Autoencoder {
  int64_t pixels;  // channels
  nn::Linear in, out;
  explicit Vae(const VaeConfig& c)
      : Autoencoder(nullptr, ""),
        pixels(c.pixel_channels),
        in(this, "in", pixels * kStride * kStride, kChannels),
        out(this, "out", kChannels, pixels * kStride * kStride) {}
  at::Tensor encode(const at::Tensor& pixels_BCTHW, BlockRunner&) const override {
    const at::Tensor cells =
        at::pixel_unshuffle(pixels_BCTHW.transpose(1, 2).to(in.weight->draw().scalar_type()),
                            kStride);  // [B, T, C, h, w]
    return in.forward(cells.permute({0, 1, 3, 4, 2})).permute({0, 4, 1, 2, 3}).contiguous();
  }
  void decode(const at::Tensor& latents_BCTHW, BlockRunner&, const FrameSink& sink) const override {
    for (int64_t t = 0; t < latents_BCTHW.size(2); ++t) {
      const at::Tensor cells = out.forward(latents_BCTHW.select(2, t).permute({0, 2, 3, 1}));
      sink(at::pixel_shuffle(cells.permute({0, 3, 1, 2}), kStride)
               .tanh()
               .to(at::kFloat)
               .unsqueeze(2));
    }
  }
  int64_t channels() const override { return kChannels; }
  int64_t spatial_stride() const override { return kStride; }
  int64_t pixel_channels() const override { return pixels; }
};

// Inputs: rows [N, D], offsets of the samples.
struct DitBlock final : Block {
  nn::Linear qkv, out;
  DitBlock(Module* parent, std::string name, int64_t width)
      : Block(parent, std::move(name)),
        qkv(this, "qkv", width, 3 * width),
        out(this, "out", width, width) {}
  std::string_view kind() const override { return "reel"; }
  Tensors forward(const Tensors& in) override {
    const at::Tensor heads = qkv.forward(in[0]).view({in[0].size(0), 3, -1, kHeadDim});
    return {in[0] + out.forward(ops::attention(heads.select(1, 0), heads.select(1, 1),
                                               heads.select(1, 2), Segments::from_tensor(in[1])))};
  }
};

struct Dit final : Denoiser {
  nn::Linear embed, pose, sound, time, unembed;
  std::vector<std::unique_ptr<DitBlock>> layers;
  explicit Dit(const StackConfig& c)
      : Denoiser(nullptr, ""),
        embed(this, "embed", kChannels, c.width),
        pose(this, "pose", kChannels, c.width),
        sound(this, "sound", 1, c.width),
        time(this, "time", kTimeChannels, c.width),
        unembed(this, "unembed", c.width, kChannels) {
    for (int64_t i = 0; i < c.layers; ++i)
      layers.push_back(std::make_unique<DitBlock>(this, "blocks." + std::to_string(i), c.width));
  }
  int64_t channels() const override { return kChannels; }
  int64_t patch() const override { return 1; }
  at::ScalarType dtype() const override { return embed.weight->draw().scalar_type(); }
  std::vector<ConditioningEntry> entries() const override {
    return {{.width = embed.out_features()},
            {.name = kMood},
            {.name = kPose},
            {.name = kSound},
            {.name = kBefore}};
  }

  // What is added to the rows of one sample, [T, h w, D], where latents are [C, T, h, w].
  at::Tensor beside(const Conditioning& cond, at::IntArrayRef latents) const {
    at::Tensor sum = named_tensor(cond, kPromptEmbeds, 2).mean(0).view({1, 1, -1});
    if (const auto mood = cond.find(kMood); mood != cond.end()) sum = sum + mood->second.mean(0);
    if (const auto clip = cond.find(kPose); clip != cond.end())
      sum = sum + pose.forward(clip->second.permute({1, 2, 3, 0}).flatten(1, 2));
    if (const auto heard = cond.find(kSound); heard != cond.end())
      sum = sum + sound.forward(heard->second.view({-1, 1, 1}));
    return sum.expand({latents[1], latents[2] * latents[3], -1}).flatten(0, 1);
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    std::vector<at::Tensor> added;
    for (int64_t b = 0; b < in.x_BCTHW.size(0); ++b)
      added.push_back(beside(*in.cond[static_cast<size_t>(b)], in.x_BCTHW.sizes().slice(1)));
    const at::Tensor level =
        time.forward(nn::time_channels(in.sigma_B, kTimeChannels, 1000.0).to(in.x_BCTHW.dtype()));
    const at::Tensor cells = in.x_BCTHW.permute({0, 2, 3, 4, 1});  // [B, T, h, w, C]
    const at::Tensor x = embed.forward(cells.flatten(1, 3)) + at::stack(added) + level.unsqueeze(1);
    const at::Tensor offsets = Segments::uniform(x.size(0), x.size(1)).tensor();
    at::Tensor rows = x.flatten(0, 1);
    for (const auto& layer : layers) rows = runner.run(*layer, {rows, offsets})[0];
    return unembed.forward(rows).view(cells.sizes()).permute({0, 4, 1, 2, 3}).contiguous();
  }
};

struct Reels final : ComponentModel {
  bool are_layers;
  Reels(std::span<const ComponentRow> rows, std::span<const Detection> parts,
        const ModelOptions& options, bool layers)
      : ComponentModel(rows, parts, options,
                       {kChannels, kStride, 1, kStride, kStride, /*takes_clips=*/true}),
        are_layers(layers) {}

  // Clips have no transparency.
  LatentSpec latent_spec() const override {
    LatentSpec spec = ComponentModel::latent_spec();
    spec.pixel_channels = are_layers ? 4 : 3;
    return spec;
  }
  void decode(const at::Tensor& latents, BlockRunner& runner, const FrameSink& sink) override {
    const int64_t channels = latent_spec().pixel_channels;
    ComponentModel::decode(latents, runner,
                           [&](const at::Tensor& pixels) { sink(pixels.narrow(1, 0, channels)); });
  }

  std::vector<int64_t> tokenize(std::string_view text) const override {
    return {reinterpret_cast<const uint8_t*>(text.data()),
            reinterpret_cast<const uint8_t*>(text.data()) + text.size()};
  }
  MediaTarget target(const Inputs& inputs, const MediaTarget& asked) const override {
    const auto* layers = find_input<int64_t>(inputs, "layer_num");
    if (layers == nullptr || asked.frames > 0) return asked;
    return {*layers + 1, asked.height, asked.width};  // the picture of them all comes first
  }
  std::vector<Piece> pieces(const Inputs&, const MediaTarget& target) const override {
    std::vector<Piece> pieces;
    if (are_layers || target.frames <= kPieceFrames) return pieces;
    for (int64_t first = 0; first + kShared < target.frames; first += kPieceFrames - kShared)
      pieces.push_back({first, kPieceFrames, first == 0 ? 0 : kShared});
    return pieces;
  }
  static std::string text_of(const EncodeInputs& in) {
    return text_input(in.values, in.stage == "mood" ? "mood" : "prompt") + '\n';
  }
  TextLength text_length(const EncodeInputs& in) const override {
    return {.tokens = std::ssize(text_of(in)), .limit = 64};
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner& runner) override {
    if (in.stage == "latents") return encode_latents(in.values, "image", runner);
    if (in.stage == "beside") return encode_beside(in, runner);
    std::vector<int64_t> ids = tokenize(text_of(in));
    cut_to_limit(ids, text_length(in));
    return {{in.stage == "mood" ? kMood : kPromptEmbeds, encode_ids("text_encoder", ids, runner)}};
  }
  Conditioning encode_beside(const EncodeInputs& in, BlockRunner& runner) {
    Conditioning made;
    const auto latents_of = [&](const at::Tensor& clip) {
      const at::Tensor opaque = at::cat({clip, at::ones_like(clip.narrow(0, 0, 1))});
      return loaded<Vae>("vae").encode(opaque.unsqueeze(0), runner)[0];
    };
    if (in.values.contains("pose")) made[kPose] = latents_of(clip_input(in.values, "pose"));
    if (const auto* heard = find_input<at::Tensor>(in.values, "sound"))
      made[kSound] = (*heard)[0].view({in.target.frames, -1}).abs().mean(1);
    if (in.before_CTHW.defined()) made[kBefore] = latents_of(in.before_CTHW);
    return made;
  }
  std::optional<GivenLatents> given(const Conditioning& cond,
                                    at::IntArrayRef latents_CTHW) const override {
    const auto before = cond.find(kBefore);
    if (before == cond.end()) return std::nullopt;
    const at::Tensor& shared = before->second;  // [C, shared, h, w]
    GivenLatents given = {at::zeros(latents_CTHW, shared.options()), {}};
    given.free_1THW = at::ones_like(given.values_CTHW.narrow(0, 0, 1));
    given.values_CTHW.narrow(1, 0, shared.size(1)).copy_(shared);
    given.free_1THW.narrow(1, 0, shared.size(1)).zero_();
    return given;
  }
};

std::optional<Detection> detect_bytes(const TensorIndex& in) {
  if (!in.contains("bytes.weight")) return std::nullopt;
  return detection_of("text_encoder", "plain", WidthConfig{in.dim("bytes.weight", 1)});
}
std::optional<Detection> detect_vae(const TensorIndex& in) {
  if (!in.contains("in.weight") || in.dim("in.weight", 0) != kChannels) return std::nullopt;
  return detection_of("vae", "plain", VaeConfig{in.dim("in.weight", 1) / (kStride * kStride)});
}
// Two blocks make layers, more of them long clips.
std::string variant_of(int64_t layers) {
  return layers == 2 ? "layers" : "long";
}
std::optional<Detection> detect_dit(const TensorIndex& in) {
  const int64_t layers = in.block_count("blocks.{}.qkv.weight");
  if (layers == 0 || !in.contains("sound.weight")) return std::nullopt;
  Detection part = detection_of("dit", "plain", StackConfig{in.dim("embed.weight", 0), layers});
  part.variant = variant_of(layers);
  return part;
}
ConfigFields told_fields(const Detection& part) {
  ConfigFields fields;
  for (const auto& [number, value] : part.config) fields.told(number, {value});
  return fields;
}
template <class Part, class Config>
WeightMap map_of(const Detection& part) {
  return named_weights(*make_part<Part, Config>(part));
}

Detection tiny_dit() {
  Detection part = detection_of("", "plain", StackConfig{32, 2});
  part.variant = variant_of(2);
  return part;
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "text_encoder", .role = Role::kTextEncoder, .help = "a vector for each byte"},
     .detect = detect_bytes,
     .config_fields = told_fields,
     .weight_map = map_of<Bytes, WidthConfig>,
     .make = make_part<Bytes, WidthConfig>,
     .tiny = [] { return detection_of("", "plain", WidthConfig{32}); }},
    {.spec = {.name = "vae", .role = Role::kVae, .help = "four by four pixels in a cell"},
     .detect = detect_vae,
     .config_fields = told_fields,
     .weight_map = map_of<Vae, VaeConfig>,
     .make = make_part<Vae, VaeConfig>,
     .tiny = [] { return detection_of("", "plain", VaeConfig{4}); }},
    {.spec = {.name = "dit", .role = Role::kDenoiser, .help = "two blocks"},
     .detect = detect_dit,
     .config_fields = told_fields,
     .weight_map = map_of<Dit, StackConfig>,
     .make = make_part<Dit, StackConfig>,
     .tiny = tiny_dit},
};

struct Family final : ComponentFamily {
  Family() : ComponentFamily(kRows, kVariants) {}
  std::string_view name() const override { return "reels"; }
  std::string_view help() const override { return "long clips and layers, for tests"; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  MediaDefaults media_defaults(const Detection& denoiser) const override {
    if (denoiser.variant == "layers") return {.target = {1, 16, 24}, .frames_are_pictures = true};
    return {.target = {5, 16, 24}, .fps = kFps};
  }
  LoraTargets lora_targets(const Detection& denoiser) const override {
    return {denoiser.component, {"blocks.*.qkv", "blocks.*.out"}, {}, "transformer."};
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    const bool layers =
        std::ranges::any_of(parts, [](const Detection& part) { return part.variant == "layers"; });
    return std::make_unique<Reels>(rows(), parts, options, layers);
  }
};

}  // namespace

ATELIER_PLUGIN(Family, "reels", "0.1.0")
