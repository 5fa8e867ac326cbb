// A family small enough to see through, for tests of the host: a table as text encoder, folded
// pixels as latents, and a denoiser of two blocks whose published tensors are cut and joined.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/model_family.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"

namespace atelier::test {

// What the toy does wrong, for tests of the conformance suite.
struct ToyMistakes {
  bool mixes_samples = false;     // a batch is not its samples
  bool skips_a_block = false;     // runs one block less than it declares
  bool ignores_sizes = false;     // takes latents whose height does not fit
  bool forgets_a_weight = false;  // the table lacks a row
  bool hides_help = false;        // an input without help
  bool takes_everything = false;  // detects any checkpoint as its denoiser
  bool changes_input = false;     // denoise writes into the latents
  bool ignores_a_field = false;   // a config field is said to be read, and is not
  bool takes_any_field = false;   // a row for fields of any name
  bool miscounts_texts = false;   // text_length counts fewer tokens than are encoded
  bool invents_a_solver = false;  // a schedule names one that there is not
  bool lacks_a_variant = false;   // no schedule is for it
  bool has_an_odd_size = false;   // by default
  bool sees_the_size = false;     // a stage that is said not to
  bool covers_half = false;       // of the noise levels
  bool confuses_levels = false;   // one that is prepared gives something else
  bool gives_negatives = false;   // of latents that are known
  bool mixes_calls = false;       // calls made together have the noise level of the first one
  bool mistakes_rows = false;     // says that a row is another sample's
  bool reads_values = false;      // of the levels, while it denoises
  bool picks_rows = false;        // as many as have a value, while it denoises
  bool stays_on_cpu = false;      // makes a tensor there, whatever the device, while it decodes
  bool bends_shapes = false;      // gives pixels without values another size
  bool misnames_entry = false;    // of what it makes of a prompt
  bool keeps_a_weight = false;    // that it drew in its first call
  bool drops_gradients = false;   // runs its blocks without a graph
  bool bends_gradients = false;   // lets what is before a block pass by it, as far as they know
};

constexpr int64_t kToyStride = 4, kToyCells = 2, kToyWidth = 32, kToyVocabulary = 48;
constexpr int64_t kToyLongestText = 512;
constexpr int64_t kToyChannels = 3 * kToyStride * kToyStride;

struct ToyTextEncoder : nn::Module {
  nn::Embedding table;
  explicit ToyTextEncoder(int64_t width)
      : Module(nullptr, ""), table(this, "table", kToyVocabulary, width) {}
};

struct ToyVae : nn::Module {
  nn::Linear scale;
  ToyVae() : Module(nullptr, ""), scale(this, "scale", 3, 3) {}
};

struct ToyBlock final : Block {
  nn::Linear q, k, v, up, down;
  ToyBlock(Module* parent, std::string name, int64_t width)
      : Block(parent, std::move(name)),
        q(this, "q", width, width, false),
        k(this, "k", width, width, false),
        v(this, "v", width, width, false),
        up(this, "up", width, 2 * width, false),
        down(this, "down", width, width) {}
  std::string_view kind() const override { return "toy"; }
  Tensors forward(const Tensors& in) override {  // {rows [N, D]}
    const at::Tensor mixed = (q.forward(in[0]) * k.forward(in[0])).tanh() * v.forward(in[0]);
    const std::vector<at::Tensor> halves = up.forward(in[0] + mixed).chunk(2, -1);
    return {in[0] + down.forward(at::silu(halves[0]) * halves[1])};
  }
};

struct ToyDit : nn::Module {
  nn::Linear embed, time, unembed;
  std::vector<std::unique_ptr<ToyBlock>> layers;
  ToyDit(int64_t width, int64_t count)
      : Module(nullptr, ""),
        embed(this, "embed", kToyChannels, width),
        time(this, "time", 1, width),
        unembed(this, "unembed", width, kToyChannels) {
    for (int64_t i = 0; i < count; ++i)
      layers.push_back(std::make_unique<ToyBlock>(this, "blocks." + std::to_string(i), width));
  }
};

[[noreturn]] inline void toy_refuses(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message, "give what the toy takes");
}

class ToyModel : public Model {
 public:
  ToyModel(std::span<const Detection> parts, const ModelOptions& options, ToyMistakes mistakes)
      : mistakes_(mistakes),
        has_tokenizer_(options.files.contains("tokenizer")),
        cuts_texts_(options.cuts_texts) {
    for (const Detection& part : parts) {
      if (part.component == "text_encoder")
        text_encoder_ = std::make_unique<ToyTextEncoder>(part.integer("width"));
      if (part.component == "vae") vae_ = std::make_unique<ToyVae>();
      if (part.component == "dit")
        dit_ = std::make_unique<ToyDit>(part.integer("width"), part.integer("layers"));
    }
  }

  nn::Module& component(std::string_view name) override {
    if (name == "text_encoder" && text_encoder_) return *text_encoder_;
    if (name == "vae" && vae_) return *vae_;
    if (name == "dit" && dit_) return *dit_;
    throw Error(ErrorCode::kNotFound, "component '" + std::string(name) + "' is not here");
  }
  std::vector<Block*> blocks(std::string_view name) override {
    std::vector<Block*> out;
    if (name == "dit" && dit_) {
      for (const auto& layer : dit_->layers) out.push_back(layer.get());
    }
    return out;
  }
  LatentSpec latent_spec() const override {
    return {kToyChannels, kToyStride, 1, kToyStride * kToyCells, kToyStride * kToyCells};
  }
  Conditioning encode(const EncodeInputs& in, BlockRunner&) override {
    if (in.stage == "latents") return {{"latents", encode_clip(clip_input(in.values, "image"))}};
    std::vector<int64_t> ids = ids_of(in.values);
    if (std::ssize(ids) > kToyLongestText) {
      if (!cuts_texts_) toy_refuses("prompt: " + std::to_string(ids.size()) + " tokens");
      ids.resize(kToyLongestText);
    }
    const at::Tensor embeds = text_encoder_->table.forward(at::tensor(ids));
    if (mistakes_.misnames_entry) return {{"prompt_embedz", embeds}};
    if (mistakes_.sees_the_size)
      return {{"prompt_embeds", embeds + static_cast<double>(in.target.height)}};
    return {{"prompt_embeds", embeds}};
  }
  TextLength text_length(const EncodeInputs& in) const override {
    const int64_t forgotten = mistakes_.miscounts_texts ? 1 : 0;
    return {.tokens = std::ssize(ids_of(in.values)) - forgotten, .limit = kToyLongestText};
  }
  at::Tensor encode_clip(const at::Tensor& pixels) {
    if (pixels.size(2) % kToyStride != 0 || pixels.size(3) % kToyStride != 0)
      toy_refuses("pixels do not fit");
    const at::Tensor scaled =
        vae_->scale.forward(pixels.permute({1, 2, 3, 0})).permute({0, 3, 1, 2});
    return at::pixel_unshuffle(scaled, kToyStride).transpose(0, 1).contiguous();
  }
  void decode(const at::Tensor& latents, BlockRunner&, const FrameSink& sink) override {
    at::Tensor pixels = at::pixel_shuffle(latents.transpose(1, 2), kToyStride).transpose(1, 2);
    if (mistakes_.stays_on_cpu) pixels = pixels + at::zeros({pixels.size(4)});
    if (mistakes_.bends_shapes && pixels.is_meta()) pixels = pixels.narrow(3, 0, 1);
    sink(pixels.to(at::kFloat));
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    if (in.x_BCTHW.size(1) != kToyChannels) toy_refuses("latents have another number of channels");
    if (!mistakes_.ignores_sizes &&
        (in.x_BCTHW.size(3) % kToyCells != 0 || in.x_BCTHW.size(4) % kToyCells != 0))
      toy_refuses("latents do not fit");
    std::vector<at::Tensor> prompts;
    for (const Conditioning* cond : in.cond) {
      const auto entry = cond->find("prompt_embeds");
      if (entry == cond->end()) toy_refuses("conditioning 'prompt_embeds': missing");
      prompts.push_back(entry->second.mean(0));
    }
    at::Tensor text = at::stack(prompts);  // [B, D]
    if (mistakes_.mixes_samples) text = text.mean(0, /*keepdim=*/true).expand_as(text);
    const at::Tensor cells = in.x_BCTHW.permute({0, 2, 3, 4, 1});  // [B, T, H, W, C]
    at::Tensor rows = dit_->embed.forward(cells.flatten(1, 3)) + text.unsqueeze(1) +
                      dit_->time.forward(in.sigma_B.to(cells.scalar_type()).view({-1, 1, 1}));
    if (mistakes_.keeps_a_weight) {
      if (!kept_.defined()) kept_ = dit_->time.weight->draw();
      rows = rows + kept_.flatten();
    }
    const std::vector<int64_t> shape = rows.sizes().vec();
    Tensors state = {rows.flatten(0, 1)};
    if (mistakes_.mistakes_rows && shape[0] > 1) {
      std::vector<int64_t> lengths(static_cast<size_t>(shape[0]), shape[1]);
      --lengths.front(), ++lengths.back();
      const Segments wrong(lengths);
    }
    for (size_t i = mistakes_.skips_a_block ? 1 : 0; i < dit_->layers.size(); ++i) {
      const at::AutoGradMode graph(at::GradMode::is_enabled() && !mistakes_.drops_gradients);
      const at::Tensor before = state[0];
      if (mistakes_.bends_gradients) state[0] = before.detach();
      state = runner.run(*dit_->layers[i], state);
      if (mistakes_.bends_gradients) state[0] = state[0] + (before - before.detach());
    }
    if (mistakes_.changes_input) in.x_BCTHW.mul_(0.5);
    if (mistakes_.reads_values && in.sigma_B.max().item<float>() > 1) toy_refuses("levels above 1");
    if (mistakes_.picks_rows && at::nonzero(rows.isnan()).size(0) > 0) toy_refuses("no numbers");
    if (mistakes_.confuses_levels && in.level) state[0] = state[0] * 1.01;
    return dit_->unembed.forward(state[0])
        .view(cells.sizes())
        .permute({0, 4, 1, 2, 3})
        .contiguous();
  }
  std::vector<at::Tensor> denoise_all(std::span<const DenoiseInputs> calls,
                                      BlockRunner& runner) override {
    std::vector<DenoiseInputs> all(calls.begin(), calls.end());
    for (size_t i = 1; mistakes_.mixes_calls && i < all.size(); ++i)
      all[i].sigma_B = all[0].sigma_B[0].expand_as(all[i].sigma_B);
    return Model::denoise_all(all, runner);
  }
  std::optional<GivenLatents> given(const Conditioning&, at::IntArrayRef) const override {
    if (!mistakes_.gives_negatives) return std::nullopt;
    const at::Tensor free = at::full({1, 1, 4, 6}, -0.5);
    return GivenLatents{at::zeros({kToyChannels, 1, 4, 6}), free};
  }
  NamedTensors probe(std::string_view name, const NamedTensors& in, BlockRunner& runner) override {
    component(name);
    const std::vector<std::string> known =
        name == "text_encoder" ? std::vector<std::string>{"ids"}
        : name == "vae"        ? std::vector<std::string>{"image"}
                               : std::vector<std::string>{"latents", "sigma", "prompt"};
    for (const auto& [key, value] : in) {
      if (std::find(known.begin(), known.end(), key) == known.end())
        toy_refuses("tensor '" + key + "' is not known");
    }
    for (const std::string& key : known) {
      if (!in.contains(key)) toy_refuses("tensor '" + key + "' is missing");
    }
    if (name == "text_encoder")
      return {{"embeds", text_encoder_->table.forward(in.find("ids")->second)}};
    if (name == "vae") return {{"latents", encode_clip(in.find("image")->second)}};
    const Conditioning cond = {{"prompt_embeds", in.find("prompt")->second}};
    const Conditioning* one[] = {&cond};
    return {{"velocity", denoise({.x_BCTHW = in.find("latents")->second,
                                  .sigma_B = in.find("sigma")->second,
                                  .cond = one},
                                 runner)}};
  }
  std::vector<int64_t> tokenize(std::string_view text) const override {
    if (!has_tokenizer_) throw Error(ErrorCode::kUnsupported, "there is no tokenizer", "give one");
    std::vector<int64_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c) % kToyVocabulary);
    return ids;
  }

 private:
  std::vector<int64_t> ids_of(const Inputs& inputs) const {
    const auto prompt = inputs.find("prompt");
    if (prompt == inputs.end()) toy_refuses("input 'prompt': missing");
    const auto style = inputs.find("style");
    const std::string before =
        style == inputs.end() ? std::string() : std::get<std::string>(style->second);
    return tokenize(before + std::get<std::string>(prompt->second));
  }

  ToyMistakes mistakes_;
  bool has_tokenizer_, cuts_texts_;
  at::Tensor kept_;
  std::unique_ptr<ToyTextEncoder> text_encoder_;
  std::unique_ptr<ToyVae> vae_;
  std::unique_ptr<ToyDit> dit_;
};

class ToyFamily : public ModelFamily {
 public:
  explicit ToyFamily(ToyMistakes mistakes = {}) : mistakes_(mistakes) {}

  std::string_view name() const override { return "toy"; }
  std::string_view help() const override { return "a toy of the tests"; }
  std::span<const ComponentSpec> components() const override {
    static constexpr ComponentSpec kSpecs[] = {
        {"text_encoder", Role::kTextEncoder, true, "a table"},
        {"vae", Role::kVae, true, "folded pixels"},
        {"dit", Role::kDenoiser, true, "two blocks"},
        {"tokenizer", Role::kTokenizer, true, "any folder with a tokenizer.json"}};
    return kSpecs;
  }
  std::span<const EncodeStage> encode_stages() const override {
    static constexpr std::string_view kEncoders[] = {"text_encoder", "tokenizer"};
    static constexpr std::string_view kVae[] = {"vae"}, kImage[] = {"image"}, kText[] = {"prompt"};
    static constexpr EncodeStage kStages[] = {{"text", kEncoders, kText},
                                              {"latents", kVae, kImage}};
    return kStages;
  }
  std::span<const InputSpec> inputs() const override {
    static constexpr InputSpec kGood[] = {
        {"prompt", InputKind::kText, true, "*", InputUse::kBoth, "*", "what to show"},
        {"strength", InputKind::kReal, false, "*", InputUse::kGenerate, "*", "how much"},
        {"references", InputKind::kImage, false, "*", InputUse::kGenerate, "edit*",
         "images to follow", InputRole::kCondition, 1, 3},
        {"count", InputKind::kInteger, false, "*", InputUse::kTrain, "*", "a number"},
        {"image", InputKind::kImage, true, "*", InputUse::kTrain, "*", "to learn",
         InputRole::kTarget}};
    static constexpr InputSpec kBad[] = {{"prompt", InputKind::kText, true}};
    return mistakes_.hides_help ? std::span<const InputSpec>(kBad)
                                : std::span<const InputSpec>(kGood);
  }
  std::span<const ScheduleDefaults> schedules() const override {
    static constexpr ScheduleDefaults kSchedules[] = {{.num_inference_steps = 4}};
    static constexpr ScheduleDefaults kInvented[] = {{.solver = "eulre"}};
    static constexpr ScheduleDefaults kForgotten[] = {{.variants = "other*"}};
    if (mistakes_.invents_a_solver) return kInvented;
    if (mistakes_.lacks_a_variant) return kForgotten;
    return kSchedules;
  }
  SigmaRange sigma_range(const Detection&) const override {
    return {.low = 0.0, .high = mistakes_.covers_half ? 0.5 : 1.0};
  }
  MediaDefaults media_defaults(const Detection&) const override {
    if (mistakes_.has_an_odd_size) return {.target = {1, 1024, 1023}};
    return {};
  }
  std::optional<Detection> detect(const TensorIndex& in, const DetectHint& hint) const override {
    std::optional<Detection> found;
    const std::string prefix = in.contains("model.diffusion_model.embed.weight")
                                   ? "model.diffusion_model."
                                   : std::string();
    if (in.contains("table.weight")) {
      found = Detection{"text_encoder", "base", "", "toy", {{"width", in.dim("table.weight", 1)}}};
    } else if (in.contains("scale.weight")) {
      found = Detection{"vae", "base", "", "toy", {}};
      const bool is_read = !mistakes_.ignores_a_field;
      found->config["cells"] = is_read ? in.config_integer("cells").value_or(kToyCells) : kToyCells;
    } else if (in.contains(prefix + "embed.weight") || mistakes_.takes_everything) {
      found = Detection{
          "dit",
          "base",
          prefix,
          "toy",
          {{"layers", in.block_count(prefix + "blocks.{}.qkv.weight")},
           {"width",
            in.contains(prefix + "embed.weight") ? in.dim(prefix + "embed.weight", 0) : 4}}};
    }
    if (found && !hint.component.empty() && hint.component != found->component)
      toy_refuses("the checkpoint is the " + found->component + ", not the " + hint.component);
    return found;
  }
  ConfigFields config_fields(const Detection& part) const override {
    ConfigFields fields;
    fields.ignored({"_class_name", "note"});
    if (mistakes_.takes_any_field) fields.ignored({"*"});
    if (part.component == "vae") return fields.read({"cells"});
    for (const auto& [number, value] : part.config) fields.told(number, {value});
    return fields;
  }
  WeightMap weight_map(const Detection& part) const override {
    if (part.component == "text_encoder") return {{"table.weight", "table.weight"}};
    if (part.component == "vae")
      return {{"scale.weight", "scale.weight"}, {"scale.bias", "scale.bias"}};
    WeightMap map = {{"embed.weight", "embed.weight"},
                     {"embed.bias", "embed.bias"},
                     {"time.weight", "time.weight"},
                     {"time.bias", "time.bias"},
                     {"unembed.weight", "unembed.weight"},
                     {"unembed.bias", "unembed.bias"},
                     {"blocks.{}.qkv.weight", "blocks.{}.q.weight", 0},
                     {"blocks.{}.qkv.weight", "blocks.{}.k.weight", 0},
                     {"blocks.{}.qkv.weight", "blocks.{}.v.weight", 0},
                     {"blocks.{}.gate.weight", "blocks.{}.up.weight", 0},
                     {"blocks.{}.value.weight", "blocks.{}.up.weight", 0},
                     {"blocks.{}.down.weight", "blocks.{}.down.weight"},
                     {"blocks.{}.down.bias", "blocks.{}.down.bias"},
                     {"extra.*"}};
    if (mistakes_.forgets_a_weight) map.erase(map.begin() + 3);
    return map;
  }
  LoraTargets lora_targets(const Detection&) const override {
    return {"dit", {"blocks.*.q"}, {}, "transformer."};
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    return std::make_unique<ToyModel>(parts, options, mistakes_);
  }
  std::vector<Detection> tiny_parts() const override {
    return {{"text_encoder", "base", "", "toy", {{"width", kToyWidth}}},
            {"vae", "base", "", "toy", {}},
            {"dit", "base", "", "toy", {{"layers", int64_t{2}}, {"width", kToyWidth}}}};
  }
  Conditioning example_conditioning(const Detection& denoiser, int64_t tokens,
                                    at::ScalarType dtype) const override {
    return {
        {"prompt_embeds", at::randn({tokens, denoiser.integer("width")}, at::kFloat).to(dtype)}};
  }

 private:
  ToyMistakes mistakes_;
};

}  // namespace atelier::test
