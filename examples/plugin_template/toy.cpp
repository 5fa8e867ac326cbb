// A family in one file: a byte table as text encoder, folded pixels as latents, a small denoiser.
#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"
#include "atelier/plugin.h"

namespace {
using namespace atelier;
constexpr int64_t kStride = 4, kChannels = 3 * kStride * kStride, kHeadDim = 16;
constexpr ComponentSpec kComponents[] = {
    {"text_encoder", "text_encoder", {.encode = true}, true, "a vector for each of the 256 bytes"},
    {"dit", "dit", {.denoise = true}, true, "the denoiser"}};
constexpr InputSpec kInputs[] = {{"prompt", InputKind::kText, true, InputUse::kBoth, "*", "text"}};
constexpr ScheduleDefaults kSchedules[] = {{.num_inference_steps = 8}};

struct TextEncoder : nn::Module {
  nn::Embedding bytes;
  explicit TextEncoder(int64_t width) : Module(nullptr, ""), bytes(this, "bytes", 256, width) {}
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

struct Dit : nn::Module {
  nn::Linear embed, time, out;
  std::vector<std::unique_ptr<ToyBlock>> layers;
  std::vector<Block*> order;
  Dit(int64_t width, int64_t count)
      : Module(nullptr, ""),
        embed(this, "embed", kChannels, width),
        time(this, "time", 1, width),
        out(this, "out", width, kChannels) {
    for (int64_t i = 0; i < count; ++i) {
      layers.push_back(std::make_unique<ToyBlock>(this, "blocks." + std::to_string(i), width));
      order.push_back(layers.back().get());
    }
  }
};

const std::string& prompt_of(const Inputs& inputs) {
  const auto it = inputs.find("prompt");
  if (it == inputs.end()) throw Error(ErrorCode::kInvalidArgument, "input 'prompt': missing");
  return std::get<std::string>(it->second);
}

struct ToyModel final : Model {
  std::unique_ptr<TextEncoder> text_encoder;
  std::unique_ptr<Dit> dit;

  nn::Module& component(std::string_view name) override {
    if (name == "text_encoder" && text_encoder) return *text_encoder;
    if (name == "dit" && dit) return *dit;
    throw Error(ErrorCode::kNotFound, "component '" + std::string(name) + "' is not loaded");
  }
  std::vector<Block*> blocks(std::string_view name) override {
    return name == "dit" && dit ? dit->order : std::vector<Block*>();
  }
  LatentSpec latent_spec() const override { return {kChannels, kStride, 1, kStride, kStride}; }
  std::vector<int64_t> tokenize(std::string_view text) const override {
    return {reinterpret_cast<const uint8_t*>(text.data()),
            reinterpret_cast<const uint8_t*>(text.data()) + text.size()};
  }
  TextLength text_length(const Inputs& inputs) const override {
    return {.tokens = std::ssize(prompt_of(inputs)), .limit = INT64_MAX};  // none is too long
  }
  Conditioning encode_text(const Inputs& inputs, BlockRunner&) override {
    component("text_encoder");
    return {
        {"prompt_embeds", text_encoder->bytes.forward(at::tensor(tokenize(prompt_of(inputs))))}};
  }
  at::Tensor encode_media(const at::Tensor& pixels, BlockRunner&) override {  // [3, T, H, W]
    if (pixels.size(2) % kStride != 0 || pixels.size(3) % kStride != 0) {
      throw Error(ErrorCode::kInvalidArgument, "height and width must be multiples of 4");
    }
    return at::pixel_unshuffle(pixels.transpose(0, 1), kStride).transpose(0, 1).contiguous();
  }
  at::Tensor decode(const at::Tensor& z_BCTHW, BlockRunner&) override {
    return at::pixel_shuffle(z_BCTHW.transpose(1, 2), kStride).transpose(1, 2).to(at::kFloat);
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    component("dit");
    std::vector<at::Tensor> text;
    std::vector<int64_t> lengths;
    for (const Conditioning* cond : in.cond) {
      lengths.push_back(text.emplace_back(named_tensor(*cond, "prompt_embeds", 2)).size(0));
    }
    const at::Tensor cells = in.x_BCTHW.permute({0, 2, 3, 4, 1});
    const at::Tensor x = dit->embed.forward(cells.flatten(1, 3)) +
                         dit->time.forward(in.sigma_B.to(cells.dtype()).view({-1, 1, 1}));
    const Segments text_rows(lengths), rows = Segments::uniform(x.size(0), x.size(1));
    Tensors state = {join_rows(at::cat(text), text_rows, x.flatten(0, 1), rows),
                     join(text_rows, rows).tensor()};
    for (Block* block : dit->order) state[0] = runner.run(*block, state)[0];
    const at::Tensor v = dit->out.forward(split_rows(state[0], text_rows, rows).second);
    return v.view(cells.sizes()).permute({0, 4, 1, 2, 3}).contiguous();
  }
  NamedTensors probe(std::string_view name, const NamedTensors& in, BlockRunner& runner) override {
    if (&component(name) == text_encoder.get()) {
      allow_only(in, {"ids"});
      return {{"embeds", text_encoder->bytes.forward(named_tensor(in, "ids", 1))}};
    }
    allow_only(in, {"x", "sigma", "prompt_embeds"});
    const Conditioning cond = {{"prompt_embeds", named_tensor(in, "prompt_embeds", 2)}};
    const Conditioning* one[] = {&cond};
    const at::Tensor &x = named_tensor(in, "x", 5), &sigma = named_tensor(in, "sigma", 1);
    return {{"velocity", denoise({x, sigma, one}, runner)}};
  }
};

struct ToyFamily final : ModelFamily {
  static Detection text_part(int64_t width) {
    return {"text_encoder", "toy", "", "toy", {{"width", width}}};
  }
  static Detection dit_part(int64_t width, int64_t layers) {
    return {"dit", "toy", "", "toy", {{"width", width}, {"layers", layers}}};
  }
  std::string_view name() const override { return "toy"; }
  std::string_view help() const override { return "an example of a family, for plugin authors"; }
  std::span<const ComponentSpec> components() const override { return kComponents; }
  std::span<const InputSpec> inputs() const override { return kInputs; }
  std::span<const ScheduleDefaults> schedules() const override { return kSchedules; }
  std::optional<Detection> detect(const TensorIndex& in, const DetectHint& hint) const override {
    std::optional<Detection> found;
    const int64_t layers = in.block_count("blocks.{}.qkv.weight");
    if (layers && in.contains("out.weight")) found = dit_part(in.dim("out.weight", 1), layers);
    if (in.contains("bytes.weight")) found = text_part(in.dim("bytes.weight", 1));
    if (found && !hint.component.empty() && hint.component != found->component)
      throw Error(ErrorCode::kInvalidArgument, "this is a " + found->component);
    return found;
  }
  ConfigFields config_fields(const Detection& part) const override {
    ConfigFields fields;  // the tensors say everything; what else a config.json has is refused
    for (const auto& [number, value] : part.config) fields.told(number, {value});
    return fields;
  }
  WeightMap weight_map(const Detection& part) const override {
    WeightMap map;  // published under the names of the modules
    const auto model = make_model({&part, 1}, {});
    model->component(part.component).visit_weights([&](const std::string& path, Weight&) {
      map.push_back({path, path});
    });
    return map;
  }
  LoraTargets lora_targets(const Detection&) const override { return {"dit", {"*.qkv"}, {}, ""}; }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions&) const override {
    auto model = std::make_unique<ToyModel>();
    for (const Detection& part : parts) {
      const int64_t width = part.integer("width");
      if (width != parts[0].integer("width"))
        throw Error(ErrorCode::kInvalidArgument, "text encoder and denoiser differ in width");
      if (part.component == "text_encoder") model->text_encoder.reset(new TextEncoder(width));
      if (part.component == "dit") model->dit.reset(new Dit(width, part.integer("layers")));
    }
    return model;
  }
  std::vector<Detection> tiny_parts() const override { return {text_part(32), dit_part(32, 2)}; }
  Conditioning example_conditioning(const Detection& denoiser, int64_t tokens,
                                    at::ScalarType dtype) const override {
    return {{"prompt_embeds", at::randn({tokens, denoiser.integer("width")}, dtype)}};
  }
};

}  // namespace

ATELIER_PLUGIN(ToyFamily, "toy", "0.1.0")
