// A family in one file: a byte table as text encoder, folded pixels as latents, a small denoiser.
#include <ATen/ATen.h>

#include "atelier/component_model.h"
#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"
#include "atelier/plugin.h"

namespace {
using namespace atelier;
constexpr int64_t kStride = 4, kChannels = 3 * kStride * kStride, kHeadDim = 16;
constexpr std::string_view kVariants[] = {"toy"};
constexpr InputSpec kInputs[] = {
    {.name = "prompt", .kind = InputKind::kText, .required = true, .help = "text"},
    {.name = "image",
     .kind = InputKind::kImage,
     .required = true,
     .use = InputUse::kTrain,
     .help = "to learn",
     .role = InputRole::kTarget},
    {.name = "input_image",
     .kind = InputKind::kImage,
     .use = InputUse::kGenerate,
     .help = "start",
     .role = InputRole::kStart}};
constexpr std::string_view kEncoder[] = {"text_encoder"};
constexpr EncodeStage kStages[] = {{"text", kEncoder, kPromptInput}, {"latents", {}, kImageInput}};
constexpr ScheduleDefaults kSchedules[] = {{.num_inference_steps = 8}};

// What tells one checkpoint's modules from another's; detect() reads it from shapes.
struct BytesConfig {
  int64_t width;
  template <class Fields>
  void visit(Fields&& fields) {
    fields("width", width);
  }
};
struct DitConfig {
  int64_t width, layers;
  template <class Fields>
  void visit(Fields&& fields) {
    fields("width", width), fields("layers", layers);
  }
};

struct Bytes final : TextEncoder {
  nn::Embedding bytes;
  explicit Bytes(const BytesConfig& c)
      : TextEncoder(nullptr, ""), bytes(this, "bytes", 256, c.width) {}
  at::Tensor forward(const at::Tensor& ids_N, const Segments&, BlockRunner&) override {
    return bytes.forward(ids_N);
  }
  int64_t vocabulary() const override { return 256; }
  int64_t width() const override { return bytes.weight->sizes()[1]; }
};

struct ToyBlock final : Block {
  nn::RMSNorm norm;
  nn::Linear qkv, out, up, down;
  ToyBlock(Module* parent, std::string name, int64_t width)
      : Block(parent, std::move(name)),
        norm(this, "norm", width),
        qkv(this, "qkv", width, 3 * width),
        out(this, "out", width, width),
        up(this, "up", width, 4 * width),
        down(this, "down", 4 * width, width) {}
  std::string_view kind() const override { return "toy"; }
  Tensors forward(const Tensors& in) override {  // {rows [N, D], offsets of the samples}
    const auto heads = qkv.forward(norm.forward(in[0])).view({in[0].size(0), 3, -1, kHeadDim});
    const at::Tensor x =
        in[0] + out.forward(ops::attention(heads.select(1, 0), heads.select(1, 1),
                                           heads.select(1, 2), Segments::from_tensor(in[1])));
    return {x + down.forward(ops::gelu_tanh(up.forward(x)))};
  }
};

struct Dit final : Denoiser {
  nn::Linear embed, time, out;
  std::vector<std::unique_ptr<ToyBlock>> layers;
  explicit Dit(const DitConfig& c)
      : Denoiser(nullptr, ""),
        embed(this, "embed", kChannels, c.width),
        time(this, "time", 1, c.width),
        out(this, "out", c.width, kChannels) {
    for (int64_t i = 0; i < c.layers; ++i)
      layers.push_back(std::make_unique<ToyBlock>(this, "blocks." + std::to_string(i), c.width));
  }
  int64_t channels() const override { return kChannels; }
  int64_t patch() const override { return 1; }
  at::ScalarType dtype() const override { return embed.weight->draw().scalar_type(); }
  std::vector<ConditioningEntry> entries() const override {
    return {{.width = embed.out_features()}};  // "prompt_embeds", what the text encoder gives
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    const PackedRows text = pack_entry(in.cond, kPromptEmbeds);
    const at::Tensor cells = in.x_BCTHW.permute({0, 2, 3, 4, 1});
    const at::Tensor x = embed.forward(cells.flatten(1, 3)) +
                         time.forward(in.sigma_B.to(cells.dtype()).view({-1, 1, 1}));
    const Segments rows = Segments::uniform(x.size(0), x.size(1));
    Tensors state = {join_rows(text.values, text.rows, x.flatten(0, 1), rows),
                     join(text.rows, rows).tensor()};
    for (const auto& layer : layers) state[0] = runner.run(*layer, state)[0];
    const at::Tensor v = out.forward(split_rows(state[0], text.rows, rows).second);
    return v.view(cells.sizes()).permute({0, 4, 1, 2, 3}).contiguous();
  }
};

// How inputs become conditionings. This family has no weights for pixels, and folds them itself.
struct ToyModel final : ComponentModel {
  using ComponentModel::ComponentModel;
  static std::string text_of(const Inputs& inputs) { return text_input(inputs, "prompt") + '\n'; }

  std::vector<int64_t> tokenize(std::string_view text) const override {
    return {reinterpret_cast<const uint8_t*>(text.data()),
            reinterpret_cast<const uint8_t*>(text.data()) + text.size()};
  }
  TextLength text_length(const EncodeInputs& in) const override {
    return {.tokens = std::ssize(text_of(in.values)), .limit = INT64_MAX};  // none is too long
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner& runner) override {
    if (in.stage == "text")
      return {{kPromptEmbeds, encode_ids("text_encoder", tokenize(text_of(in.values)), runner)}};
    const at::Tensor pixels = clip_input(in.values, "image");  // [3, T, H, W]
    if (pixels.size(2) % kStride != 0 || pixels.size(3) % kStride != 0)
      throw Error(ErrorCode::kInvalidArgument, "height and width must be multiples of 4");
    const at::Tensor cells = at::pixel_unshuffle(pixels.transpose(0, 1), kStride);
    return {{"latents", cells.transpose(0, 1).contiguous()}};
  }
  void decode(const at::Tensor& z_BCTHW, BlockRunner&, const FrameSink& sink) override {
    sink(at::pixel_shuffle(z_BCTHW.transpose(1, 2), kStride).transpose(1, 2).to(at::kFloat));
  }
};

std::optional<Detection> detect_bytes(const TensorIndex& in) {
  if (!in.contains("bytes.weight")) return std::nullopt;
  return detection_of("text_encoder", "toy", BytesConfig{in.dim("bytes.weight", 1)});
}
std::optional<Detection> detect_dit(const TensorIndex& in) {
  const int64_t layers = in.block_count("blocks.{}.qkv.weight");
  if (layers == 0 || !in.contains("out.weight")) return std::nullopt;
  return detection_of("dit", "toy", DitConfig{in.dim("out.weight", 1), layers});
}
ConfigFields fields_of(const Detection& part) {
  ConfigFields fields;  // the tensors say everything; what else a config.json has is refused
  for (const auto& [number, value] : part.config) fields.told(number, {value});
  return fields;
}
template <class Part, class Config>
WeightMap map_of(const Detection& part) {  // published under the names of the modules
  return named_weights(*make_part<Part, Config>(part));
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "text_encoder", .role = Role::kTextEncoder, .help = "a vector for each byte"},
     .detect = detect_bytes,
     .config_fields = fields_of,
     .weight_map = map_of<Bytes, BytesConfig>,
     .make = make_part<Bytes, BytesConfig>,
     .tiny = [] { return detection_of("text_encoder", "toy", BytesConfig{32}); }},
    {.spec = {.name = "dit", .role = Role::kDenoiser, .help = "the denoiser"},
     .detect = detect_dit,
     .config_fields = fields_of,
     .weight_map = map_of<Dit, DitConfig>,
     .make = make_part<Dit, DitConfig>,
     .tiny = [] {
       return detection_of("dit", "toy", DitConfig{32, 2});
     }}};

struct ToyFamily final : ComponentFamily {
  ToyFamily() : ComponentFamily(kRows, kVariants) {}
  std::string_view name() const override { return "toy"; }
  std::string_view help() const override { return "an example of a family, for plugin authors"; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const EncodeStage> encode_stages() const override { return kStages; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  LoraTargets lora_targets(const Detection&) const override { return {"dit", {"*.qkv"}, {}, ""}; }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    const LatentSpec latents = {kChannels, kStride, 1, kStride, kStride};
    return std::make_unique<ToyModel>(rows(), parts, options, latents);
  }
};

}  // namespace

ATELIER_PLUGIN(ToyFamily, "toy", "0.1.0")
