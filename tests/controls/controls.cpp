// A family with controls: a network of which a model may have three, each with an image of its own,
// and a small one that a number switches on. What they give is added to the denoiser's blocks. It
// is written in the frame of the SDK alone; nothing outside this folder knows it.
#include <ATen/ATen.h>

#include "atelier/component_model.h"
#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"
#include "atelier/ops/pointwise.h"
#include "atelier/plugin.h"

#include "tests/support/byte_encoder.h"

namespace {
using namespace atelier;
using test::Bytes;
using test::StackConfig;
using test::WidthConfig;

constexpr int64_t kStride = 2, kChannels = 3 * kStride * kStride;
constexpr std::string_view kVariants[] = {"controls"};
constexpr int64_t kParts = 1'000'000;  // of all steps, in which kWindow counts
// kWindow: a tensor without values, [0, start, end].
constexpr const char *kHints = "hints", *kWindow = "window", *kSpeed = "speed";
// From where to where, as parts of all steps; left out: in all steps.
constexpr const char *kStart = "controlnet_start", *kEnd = "controlnet_end";

constexpr InputSpec kInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true, .help = "what is to be seen"},
    {.name = "controlnet_image",
     .kind = InputKind::kImage,
     .help = "an image to follow, for each controlnet",
     .max_count = 3,
     .fit = InputFit::kStretch,
     .per_instance_of = "controlnet"},
    {.name = kStart,
     .kind = InputKind::kReal,
     .use = InputUse::kGenerate,
     .help = "part of the steps before which no controlnet runs"},
    {.name = kEnd,
     .kind = InputKind::kReal,
     .use = InputUse::kGenerate,
     .help = "part of the steps behind which no controlnet runs"},
    {.name = "speed", .kind = InputKind::kInteger, .help = "how much is moved"},
    {.name = "image",
     .kind = InputKind::kImage,
     .required = true,
     .use = InputUse::kTrain,
     .help = "the image to learn",
     .role = InputRole::kTarget},
};
constexpr std::string_view kTextEncoder[] = {"text_encoder"}, kMotion[] = {"motion"},
                           kFollowers[] = {"vae", "controlnet"},
                           kHintInputs[] = {"controlnet_image", kStart, kEnd},
                           kSpeedInput[] = {"speed"};
constexpr EncodeStage kStages[] = {
    {.name = "text", .components = kTextEncoder, .inputs = kPromptInput},
    {.name = "hints", .components = kFollowers, .inputs = kHintInputs},
    {.name = "speed", .components = kMotion, .inputs = kSpeedInput},
    kImageStage,
};
constexpr ScheduleDefaults kSchedules[] = {{.num_inference_steps = 4}};

struct Window {
  int64_t start = 0, end = kParts;
};

Window window_of(const Inputs& inputs) {
  Window window;
  if (const auto* start = find_input<double>(inputs, kStart))
    window.start = std::llround(*start * kParts);
  if (const auto* end = find_input<double>(inputs, kEnd)) window.end = std::llround(*end * kParts);
  return window;
}

// Every step is within it where there are none, as in training.
bool is_in_window(const Window& window, int64_t step, int64_t steps) {
  return steps == 0 ||
         (step * kParts >= window.start * steps && step * kParts < window.end * steps);
}

struct ScaleConfig {
  int64_t channels;
  template <class Fields>
  void visit(Fields&& fields) {
    fields("channels", channels);
  }
};

// Folds pixels, as they are and mixed.
struct Folded final : Autoencoder {
  mutable nn::Linear mix, unmix;
  explicit Folded(const ScaleConfig& c)
      : Autoencoder(nullptr, ""),
        mix(this, "mix", c.channels, c.channels),
        unmix(this, "unmix", c.channels, c.channels) {}
  at::Tensor encode(const at::Tensor& pixels_BCTHW, BlockRunner&) const override {
    const at::Tensor folded = at::pixel_unshuffle(pixels_BCTHW.transpose(1, 2), kStride);
    const at::Tensor cells = folded.to(mix.weight->draw().scalar_type()).permute({0, 1, 3, 4, 2});
    return mix.forward(cells).permute({0, 4, 1, 2, 3}).contiguous();
  }
  void decode(const at::Tensor& latents_BCTHW, BlockRunner&, const FrameSink& sink) const override {
    const at::Tensor cells = unmix.forward(latents_BCTHW.permute({0, 2, 3, 4, 1}));
    const at::Tensor pixels = at::pixel_shuffle(cells.permute({0, 1, 4, 2, 3}), kStride);
    sink(pixels.transpose(1, 2).tanh().to(at::kFloat));
  }
  int64_t channels() const override { return kChannels; }
  int64_t spatial_stride() const override { return kStride; }
};

// Inputs: rows of all samples [N, D].
struct StackBlock final : Block {
  nn::Linear up, down;
  StackBlock(Module* parent, std::string name, int64_t width)
      : Block(parent, std::move(name)),
        up(this, "up", width, 2 * width),
        down(this, "down", 2 * width, width) {}
  std::string_view kind() const override { return "stack"; }
  Tensors forward(const Tensors& in) override {
    return {in[0] + down.forward(ops::gelu_tanh(up.forward(in[0])))};
  }
};

using Layers = std::vector<std::unique_ptr<StackBlock>>;

Layers make_layers(nn::Module* parent, const StackConfig& c) {
  Layers layers;
  for (int64_t i = 0; i < c.layers; ++i)
    layers.push_back(std::make_unique<StackBlock>(parent, "blocks." + std::to_string(i), c.width));
  return layers;
}

// Runs a block of its own before each of the denoiser's, whose rows it changes then.
struct ControlNet final : nn::Module {
  nn::Linear hint, add;
  Layers layers;
  explicit ControlNet(const StackConfig& c)
      : Module(nullptr, ""),
        hint(this, "hint", kChannels, c.width),
        add(this, "add", c.width, c.width),
        layers(make_layers(this, c)) {}
};

struct Motion final : nn::Module {
  nn::Linear speed;
  explicit Motion(const WidthConfig& c) : Module(nullptr, ""), speed(this, "speed", 1, c.width) {}
};

// [B, C, T, H, W] to [cells of all samples, C].
at::Tensor cells_of(const at::Tensor& x_BCTHW) {
  return x_BCTHW.permute({0, 2, 3, 4, 1}).flatten(0, 3);
}

struct Dit final : Denoiser {
  nn::Linear embed, time, unembed;
  Layers layers;
  std::vector<ControlNet*> nets = {};  // of the model
  Motion* motion = nullptr;            // likewise
  explicit Dit(const StackConfig& c)
      : Denoiser(nullptr, ""),
        embed(this, "embed", kChannels, c.width),
        time(this, "time", 1, c.width),
        unembed(this, "unembed", c.width, kChannels),
        layers(make_layers(this, c)) {}
  int64_t channels() const override { return kChannels; }
  int64_t patch() const override { return 1; }
  at::ScalarType dtype() const override { return embed.weight->draw().scalar_type(); }
  std::vector<ConditioningEntry> entries() const override {
    return {{.width = embed.out_features()}};
  }

  // Whether the controlnets run in this step.
  static bool follows_hints(const DenoiseInputs& in) {
    const Conditioning& cond = *in.cond.front();
    if (!cond.contains(kHints)) return false;
    const at::Tensor& window = cond.at(kWindow);
    return is_in_window({window.size(1), window.size(2)}, in.step, in.steps);
  }

  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    const int64_t B = in.x_BCTHW.size(0), per_sample = in.x_BCTHW[0][0].numel();
    std::vector<at::Tensor> levels;  // [D] of each sample
    for (const Conditioning* cond : in.cond) {
      levels.push_back(named_tensor(*cond, kPromptEmbeds, 2).mean(0));
      if (cond->contains(kSpeed) && motion != nullptr)
        levels.back() = levels.back() + motion->speed.forward(cond->at(kSpeed).to(dtype()));
    }
    const at::Tensor level = at::stack(levels) + time.forward(in.sigma_B.to(dtype()).unsqueeze(1));
    at::Tensor rows = embed.forward(cells_of(in.x_BCTHW)) + level.repeat_interleave(per_sample, 0);
    std::vector<at::Tensor> states;  // of each controlnet
    for (size_t n = 0; follows_hints(in) && n < nets.size(); ++n) {
      std::vector<at::Tensor> hints;
      for (const Conditioning* cond : in.cond)
        hints.push_back(named_tensor(*cond, kHints, 5)[static_cast<int64_t>(n)]);
      const at::ScalarType own = nets[n]->hint.weight->draw().scalar_type();
      states.push_back(nets[n]->hint.forward(cells_of(at::stack(hints).to(own))));
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      for (size_t n = 0; n < states.size(); ++n) {
        if (i < nets[n]->layers.size()) states[n] = runner.run(*nets[n]->layers[i], {states[n]})[0];
        rows = rows + nets[n]->add.forward(states[n]).to(rows.scalar_type());
      }
      rows = runner.run(*layers[i], {rows})[0];
    }
    const auto size = in.x_BCTHW.sizes();
    return unembed.forward(rows)
        .view({B, size[2], size[3], size[4], kChannels})
        .permute({0, 4, 1, 2, 3})
        .contiguous();
  }
};

struct Controls final : ComponentModel {
  Controls(std::span<const ComponentRow> rows, std::span<const Detection> parts,
           const ModelOptions& options)
      : ComponentModel(rows, parts, options, {kChannels, kStride, 1, kStride, kStride}) {
    const auto find = [&](const std::string& name) -> nn::Module* {
      const bool is_there =
          std::ranges::any_of(parts, [&](const Detection& part) { return part.component == name; });
      return is_there ? &component(name) : nullptr;
    };
    auto* dit = dynamic_cast<Dit*>(find("dit"));
    if (dit == nullptr) return;
    dit->motion = dynamic_cast<Motion*>(find("motion"));
    for (const char* name : {"controlnet", "controlnet.1", "controlnet.2"})
      if (auto* net = dynamic_cast<ControlNet*>(find(name))) dit->nets.push_back(net);
  }

  std::vector<int64_t> tokenize(std::string_view text) const override {
    return {reinterpret_cast<const uint8_t*>(text.data()),
            reinterpret_cast<const uint8_t*>(text.data()) + text.size()};
  }
  static std::string text_of(const EncodeInputs& in) {
    return text_input(in.values, "prompt") + '\n';
  }
  TextLength text_length(const EncodeInputs& in) const override {
    return {.tokens = std::ssize(text_of(in)), .limit = 64};
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner& runner) override {
    if (in.stage == "text") {
      std::vector<int64_t> ids = tokenize(text_of(in));
      cut_to_limit(ids, text_length(in));
      return {{kPromptEmbeds, encode_ids("text_encoder", ids, runner)}};
    }
    if (in.stage == "latents") return encode_latents(in.values, "image", runner);
    if (in.stage == "speed") {
      const auto speed = static_cast<float>(*find_input<int64_t>(in.values, "speed"));
      return {{kSpeed, at::tensor({speed})}};
    }
    Conditioning cond;
    if (const auto* images = find_input<std::vector<at::Tensor>>(in.values, "controlnet_image")) {
      std::vector<at::Tensor> hints;  // [C, 1, H, W], one for each file
      for (const at::Tensor& image : *images)
        hints.push_back(encode_latents({{"image", image}}, "image", runner).at("latents"));
      cond.emplace(kHints, at::stack(hints));
    }
    const Window window = window_of(in.values);
    cond.emplace(kWindow, at::empty({0, window.start, window.end}));
    return cond;
  }
  bool runs(std::string_view control, const Inputs& inputs, int64_t step,
            int64_t steps) const override {
    return spec_name(control) != "controlnet" || is_in_window(window_of(inputs), step, steps);
  }
  NamedTensors probe(std::string_view name, const NamedTensors& in, BlockRunner& runner) override {
    if (auto* net = dynamic_cast<ControlNet*>(&component(name))) {
      allow_only(in, {"cells"});
      at::Tensor rows = net->hint.forward(named_tensor(in, "cells", 2));
      for (const auto& layer : net->layers) rows = runner.run(*layer, {rows})[0];
      return {{"rows", net->add.forward(rows)}};
    }
    if (auto* own = dynamic_cast<Motion*>(&component(name))) {
      allow_only(in, {"speed"});
      return {{"level", own->speed.forward(named_tensor(in, "speed", 1))}};
    }
    return ComponentModel::probe(name, in, runner);
  }
};

std::optional<Detection> detect_bytes(const TensorIndex& in) {
  if (!in.contains("bytes.weight")) return std::nullopt;
  return detection_of("text_encoder", "plain", WidthConfig{in.dim("bytes.weight", 1)});
}
std::optional<Detection> detect_vae(const TensorIndex& in) {
  if (!in.contains("unmix.weight")) return std::nullopt;
  return detection_of("vae", "plain", ScaleConfig{in.dim("unmix.weight", 0)});
}
std::optional<Detection> detect_stack(const TensorIndex& in, const char* component,
                                      const char* own) {
  if (!in.contains(own)) return std::nullopt;
  return detection_of(
      component, "plain",
      StackConfig{in.dim("blocks.0.up.weight", 1), in.block_count("blocks.{}.up.weight")});
}
std::optional<Detection> detect_dit(const TensorIndex& in) {
  std::optional<Detection> part = detect_stack(in, "dit", "unembed.weight");
  if (part) part->owns = {"blocks.*", "embed.*", "time.*", "unembed.*"};
  return part;
}
std::optional<Detection> detect_net(const TensorIndex& in) {
  return detect_stack(in, "controlnet", "hint.weight");
}
std::optional<Detection> detect_motion(const TensorIndex& in) {
  if (!in.contains("speed.weight")) return std::nullopt;
  return detection_of("motion", "plain", WidthConfig{in.dim("speed.weight", 0)});
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
template <class Part, class Config>
constexpr ComponentRow row(ComponentSpec spec,
                           std::optional<Detection> (*detect)(const TensorIndex& checkpoint),
                           Detection (*tiny)()) {
  return {.spec = spec,
          .detect = detect,
          .config_fields = told_fields,
          .weight_map = map_of<Part, Config>,
          .make = make_part<Part, Config>,
          .tiny = tiny};
}

constexpr ComponentRow kRows[] = {
    row<Bytes, WidthConfig>(
        {.name = "text_encoder", .role = Role::kTextEncoder, .help = "a vector for each byte"},
        detect_bytes, [] { return detection_of("", "plain", WidthConfig{32}); }),
    row<Folded, ScaleConfig>({.name = "vae", .role = Role::kVae, .help = "folded pixels"},
                             detect_vae,
                             [] { return detection_of("", "plain", ScaleConfig{kChannels}); }),
    row<Dit, StackConfig>({.name = "dit", .role = Role::kDenoiser, .help = "a stack of blocks"},
                          detect_dit,
                          [] {
                            return detection_of("", "plain", StackConfig{32, 3});
                          }),
    row<ControlNet, StackConfig>({.name = "controlnet",
                                  .role = Role::kControl,
                                  .required = false,
                                  .help = "follows an image",
                                  .beside = "dit",
                                  .max_count = 3},
                                 detect_net,
                                 [] {
                                   return detection_of("", "plain", StackConfig{32, 2});
                                 }),
    row<Motion, WidthConfig>({.name = "motion",
                              .role = Role::kControl,
                              .required = false,
                              .help = "says how much is moved",
                              .beside = "dit"},
                             detect_motion,
                             [] { return detection_of("", "plain", WidthConfig{32}); }),
};

struct Family final : ComponentFamily {
  Family() : ComponentFamily(kRows, kVariants) {}
  std::string_view name() const override { return "controls"; }
  std::string_view help() const override { return "a denoiser with controls, for tests"; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  MediaDefaults media_defaults(const Detection&) const override { return {.target = {1, 16, 24}}; }
  LoraTargets lora_targets(const Detection& denoiser) const override {
    return {denoiser.component, {"blocks.*.up", "blocks.*.down"}, {}, "transformer."};
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    return std::make_unique<Controls>(rows(), parts, options);
  }
};

}  // namespace

ATELIER_PLUGIN(Family, "controls", "0.1.0")
