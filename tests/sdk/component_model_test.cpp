// The frame of families, by one that none of the published ones is: two denoisers of one
// architecture, two text encoders, clips, and an input beside the texts.
#include "atelier/component_model.h"

#include "atelier/error.h"
#include "atelier/named_inputs.h"
#include "atelier/nn/layers.h"

#include "support/models.h"
#include "support/tensors.h"

namespace atelier {
namespace {

using test::expect_error;

constexpr int64_t kChannels = 3, kStride = 2;

struct EncoderConfig {
  int64_t width;
  bool wide;
  template <class Fields>
  void visit(Fields&& fields) {
    fields("width", width), fields("wide", wide);
  }
};

struct DitConfig {
  int64_t channels, layers;
  std::vector<bool> windowed = {};
  std::vector<int64_t> widths = {};
  std::vector<double> means = {};
  std::array<int64_t, 3> axes = {};
  double eps = 0;
  template <class Fields>
  void visit(Fields&& fields) {
    fields("channels", channels), fields("layers", layers), fields("windowed", windowed);
    fields("widths", widths), fields("means", means), fields("axes", axes), fields("eps", eps);
  }
};

struct Encoder final : TextEncoder {
  nn::Embedding table;
  explicit Encoder(const EncoderConfig& c)
      : TextEncoder(nullptr, ""), table(this, "table", 16, c.width) {}
  at::Tensor forward(const at::Tensor& ids_N, const Segments&, BlockRunner&) override {
    return table.forward(ids_N);
  }
  int64_t vocabulary() const override { return 16; }
  int64_t width() const override { return table.weight->sizes()[1]; }
};

// Every second frame after the first, and means of squares of pixels.
struct Vae final : Autoencoder {
  nn::Linear unused;
  explicit Vae(const EncoderConfig&) : Autoencoder(nullptr, ""), unused(this, "unused", 1, 1) {}
  at::Tensor encode(const at::Tensor& pixels_BCTHW, BlockRunner&) const override {
    return at::avg_pool3d(pixels_BCTHW.slice(2, 0, std::nullopt, 2), {1, kStride, kStride});
  }
  void decode(const at::Tensor& latents_BCTHW, BlockRunner&, const FrameSink& sink) const override {
    sink(latents_BCTHW.repeat_interleave(kStride, 3).repeat_interleave(kStride, 4));
  }
  int64_t channels() const override { return kChannels; }
  int64_t spatial_stride() const override { return kStride; }
};

struct Scale final : Block {
  nn::Linear in_block;
  Scale(Module* parent, std::string name)
      : Block(parent, std::move(name)), in_block(this, "linear", 1, 1) {}
  std::string_view kind() const override { return "scale"; }
  Tensors forward(const Tensors& in) override { return {in[0] * 2}; }
};

// What it was asked is in what it gives: the latents, twice for each block, and the sum of its
// conditioning.
struct Dit final : Denoiser {
  struct Stage : nn::Module {
    Scale first, second;
    explicit Stage(Module* parent) : Module(parent, "stage"), first(this, "a"), second(this, "b") {}
  } stage;
  int64_t channels_;
  explicit Dit(const DitConfig& c) : Denoiser(nullptr, ""), stage(this), channels_(c.channels) {}
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    const Tensors out = runner.run(stage.second, runner.run(stage.first, {in.x_BCTHW}));
    std::vector<at::Tensor> sums;
    for (const Conditioning* cond : in.cond) {
      at::Tensor sum = cond->at(kPromptEmbeds).sum() + cond->at("style").sum();
      if (cond->contains("image")) sum = sum + cond->at("image").sum();
      sums.push_back(sum);
    }
    return out[0] + at::stack(sums).view({-1, 1, 1, 1, 1});
  }
  int64_t channels() const override { return channels_; }
  int64_t patch() const override { return 2; }
  at::ScalarType dtype() const override { return at::kFloat; }
  std::vector<ConditioningEntry> entries() const override {
    return {{.width = 4},
            {.name = "style", .width = 6, .lengths = "style_lengths", .encoder = "style_encoder"},
            {.name = "image"}};
  }
};

struct Pair final : ComponentModel {
  using ComponentModel::ComponentModel;
  Conditioning encode(const EncodeInputs& in, BlockRunner& runner) override {
    if (in.stage == "latents") return encode_latents(in.values, "image", runner);
    std::vector<int64_t> ids(text_input(in.values, "prompt").size(), 1);
    cut_to_limit(ids, text_length(in), " and a half");
    return {{kPromptEmbeds, encode_ids("text_encoder", ids, runner)},
            {"style", encode_ids("style_encoder", {2}, runner)}};
  }
  TextLength text_length(const EncodeInputs& in) const override {
    return {.tokens = std::ssize(text_input(in.values, "prompt")), .limit = 3};
  }
};

std::optional<Detection> detect_dit(const TensorIndex& in) {
  if (!in.contains("dit")) return std::nullopt;
  return detection_of("dit", "plain", DitConfig{kChannels, 2});
}
std::optional<Detection> detect_vae(const TensorIndex& in) {
  if (!in.contains("vae")) return std::nullopt;
  Detection part = detection_of("vae", "plain", EncoderConfig{1, false});
  part.variant = "clips-2";
  return part;
}
WeightMap map_of(const Detection& part) {
  return named_weights(*make_part<Dit, DitConfig>(part), [](const std::string& path) {
    static constexpr Renamed kRows[] = {{"stage.", "net."}, {".linear.", ".l."}};
    return renamed(path, kRows);
  });
}

constexpr ComponentRow kRows[] = {
    {.spec = {.name = "tokenizer", .role = Role::kTokenizer}},
    {.spec = {.name = "text_encoder", .role = Role::kTextEncoder},
     .make = make_part<Encoder, EncoderConfig>,
     .tokenizer = "tokenizer"},
    {.spec = {.name = "style_encoder", .role = Role::kTextEncoder},
     .make = make_part<Encoder, EncoderConfig>},
    {.spec = {.name = "vae", .role = Role::kVae},
     .detect = detect_vae,
     .make = make_part<Vae, EncoderConfig>},
    {.spec = {.name = "dit", .role = Role::kDenoiser, .paths = {"*high_noise*"}},
     .detect = detect_dit,
     .weight_map = map_of,
     .make = make_part<Dit, DitConfig>,
     .tiny =
         [] {
           return detection_of("", "plain", DitConfig{kChannels, 2});
         },
     .spellings = {"plain", "other"}},
    {.spec = {.name = "dit_low",
              .role = Role::kDenoiser,
              .paths = {"*low_noise*", "transformer_2"}},
     .detect = detect_dit,
     .make = make_part<Dit, DitConfig>,
     .tiny =
         [] {
           return detection_of("", "plain", DitConfig{kChannels, 2});
         }},
};
constexpr std::string_view kVariants[] = {"clips", "clips-2"};
constexpr LatentSpec kLatents = {kChannels, kStride, 2, 4, 4, /*takes_clips=*/true};

struct PairFamily final : ComponentFamily {
  PairFamily() : ComponentFamily(kRows, kVariants) {}
  std::string_view name() const override { return "pair"; }
  std::string_view help() const override { return "two experts"; }
  std::span<const InputSpec> inputs() const override { return {}; }
  std::span<const EncodeStage> encode_stages() const override { return {}; }
  std::span<const ScheduleDefaults> schedules() const override { return {}; }
  LoraTargets lora_targets(const Detection&) const override { return {}; }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    return std::make_unique<Pair>(rows(), parts, options, kLatents);
  }
};

Detection encoder(const char* name, int64_t width) {
  return detection_of(name, "plain", EncoderConfig{width, false});
}
Detection dit(const char* name = "dit", int64_t channels = kChannels) {
  return detection_of(name, "plain", DitConfig{channels, 2});
}

std::unique_ptr<Model> make(const std::vector<Detection>& parts, ModelOptions options = {}) {
  auto model = PairFamily().make_model(parts, options);
  for (const Detection& part : parts) {
    model->component(part.component).visit_weights([](const std::string&, Weight& weight) {
      weight.set(at::ones(weight.sizes()));
    });
  }
  return model;
}

TensorIndex holding(const char* tensor) {
  return TensorIndex({{tensor, TensorMeta{at::kFloat, {1}}}});
}

}  // namespace

TEST_CASE("Fields of every kind are read as they were written", "[kit]") {
  const DitConfig config = {.channels = 3,
                            .layers = 2,
                            .windowed = {true, false},
                            .widths = {8, 16},
                            .means = {0.5, -1},
                            .axes = {2, 4, 6},
                            .eps = 1e-5};
  const Detection part = detection_of("dit", "plain", config, "model.");
  CHECK(part.prefix == "model.");
  CHECK(std::get<std::vector<double>>(part.config.at("windowed")) == std::vector<double>{1, 0});
  const auto again = config_of<DitConfig>(part);
  CHECK(again.windowed == config.windowed);
  CHECK(again.widths == config.widths);
  CHECK(again.means == config.means);
  CHECK(again.axes == config.axes);
  CHECK(again.eps == 1e-5);
  CHECK(config_of<EncoderConfig>(detection_of("x", "y", EncoderConfig{4, true})).wide);
  CHECK_THROWS(config_of<DitConfig>(encoder("dit", 4)));
}

TEST_CASE("The stages that most families have differ in what is learned alone", "[kit]") {
  CHECK(kTextStage.name == "text");
  CHECK(std::ranges::equal(kTextStage.components, std::array{"tokenizer", "text_encoder"}));
  CHECK(std::ranges::equal(kTextStage.inputs, std::array{"prompt"}));
  CHECK(std::ranges::equal(kImageStage.inputs, std::array{"image"}));
  CHECK(std::ranges::equal(kVideoStage.inputs, std::array{"video"}));
  for (const EncodeStage& stage : {kImageStage, kVideoStage}) {
    CHECK(stage.name == "latents");
    CHECK(std::ranges::equal(stage.components, std::array{"vae"}));
  }
}

TEST_CASE("Components of one architecture are told apart by the hint alone", "[kit]") {
  const PairFamily family;
  CHECK_FALSE(family.detect(holding("x"), {}));
  const auto first = family.detect(holding("dit"), {});
  REQUIRE(first);
  CHECK(first->component == "dit");
  CHECK(first->variant == "clips");
  CHECK(family.detect(holding("dit"), {.component = "dit_low", .variant = {}})->component ==
        "dit_low");
  expect_error(ErrorCode::kInvalidArgument, {"those of the dit, and it was given as \"vae\""},
               [&] { family.detect(holding("dit"), {.component = "vae", .variant = {}}); });
  CHECK(family.detect(holding("vae"), {})->variant == "clips-2");
  CHECK(family.detect(holding("vae"), {.component = {}, .variant = "clips"})->variant == "clips");
  expect_error(ErrorCode::kUnsupported,
               {"\"clips-3\" is not run yet; variants are clips and clips-2"},
               [&] { family.detect(holding("dit"), {.component = {}, .variant = "clips-3"}); });
  expect_error(ErrorCode::kInvalidArgument, {"\"cats\" is not known"},
               [&] { family.detect(holding("dit"), {.component = {}, .variant = "cats"}); });
}

TEST_CASE("Components of one architecture are told apart by their paths", "[kit]") {
  const PairFamily family;
  const auto assigned = [&](const char* path, const char* component = "dit",
                            const DetectHint& hint = {}) {
    std::vector<FoundPart> found = {{dit(component), path, hint}};
    family.assign(found);
    return found[0].part.component;
  };
  CHECK(assigned("/m/diffusion_pytorch_model.safetensors") == "dit");
  CHECK(assigned("/m/Low_Noise_model/model-00001-of-00002.safetensors") == "dit_low");
  CHECK(assigned("/m/t2v_LOW_NOISE_14B.safetensors") == "dit_low");
  CHECK(assigned("/m/transformer_2/model.safetensors") == "dit_low");
  CHECK(assigned("/m/transformer_20/model.safetensors") == "dit");
  // The last name that says it counts, where it says one alone.
  CHECK(assigned("/low_noise/high_noise.safetensors") == "dit");
  CHECK(assigned("/low_noise/both_high_noise_low_noise.safetensors") == "dit_low");
  // Another architecture is not meant.
  CHECK(assigned("/m/low_noise.safetensors", "vae") == "vae");
  // What the user says counts more.
  CHECK(assigned("/m/low_noise.safetensors", "dit", {.component = "dit"}) == "dit");
}

TEST_CASE("Names change by whole parts, once, by the first row that fits", "[kit]") {
  static constexpr Renamed kNames[] = {{"modulation.", "adaLN_modulation.0."},
                                       {"mid.block.0.", "middle."},
                                       {".block.", ".blocks."},
                                       {"a.b", "b.a"},
                                       {"b.", "c."},
                                       {"head", ""}};
  const auto [from, to] = GENERATE(table<std::string, std::string>({
      {"modulation.weight", "adaLN_modulation.0.weight"},
      {"final.modulation", "final.adaLN_modulation.0"},
      {"adaLN_modulation.weight", "adaLN_modulation.weight"},
      {"mid.block.0.block.1", "middle.blocks.1"},
      {"mid.block.00.x", "mid.blocks.00.x"},
      {"a.b.b", "b.a.c"},
      {"head.norm", "norm"},
      {"norm.head", "norm"},
      {"", ""},
  }));
  CHECK(renamed(from, kNames) == to);
}

TEST_CASE("The table answers for every component", "[kit]") {
  const PairFamily family;
  CHECK(family.components().size() == 6);
  const std::vector<Detection> tiny = family.tiny_parts();
  REQUIRE(tiny.size() == 2);
  CHECK(tiny[1].component == "dit_low");
  CHECK(tiny[1].variant == "clips");
  CHECK(family.spellings(tiny[0]) == std::vector<std::string>{"plain", "other"});
  CHECK(family.spellings(tiny[1]) == std::vector<std::string>{"plain"});
  const WeightMap map = family.weight_map(tiny[0]);
  REQUIRE(map.size() == 4);
  CHECK(map[0].from == "net.a.l.weight");
  CHECK(map[0].to == "stage.a.linear.weight");
  const Conditioning example = family.example_conditioning(tiny[1], 5, at::kFloat);
  CHECK(example.size() == 2);
  CHECK(example.at("style").sizes() == at::IntArrayRef({5, 6}));
  expect_error(ErrorCode::kInternal, {"no component 'tokenizer' with tensors"},
               [&] { family.weight_map(encoder("tokenizer", 1)); });
}

TEST_CASE("A model has the parts that it is given, each once and fitting", "[kit]") {
  const auto model = make({dit("dit_low"), encoder("text_encoder", 4)});
  const std::vector<Block*> blocks = model->blocks("dit_low");
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0]->path() == "stage.a");
  CHECK(blocks[1]->path() == "stage.b");
  CHECK(model->blocks("dit").empty());
  expect_error(ErrorCode::kNotFound, {"the dit is not loaded"}, [&] { model->component("dit"); });
  expect_error(ErrorCode::kNotFound,
               {"no component 'cat' has tensors; components with tensors are"},
               [&] { model->component("cat"); });
  expect_error(ErrorCode::kUnsupported, {"the tokenizer is not loaded"},
               [&] { model->tokenize("x"); });
  expect_error(ErrorCode::kInvalidArgument, {"two checkpoints hold the dit"}, [] {
    make({dit(), dit()});
  });
  expect_error(ErrorCode::kInvalidArgument, {"no component 'cat'"}, [] { make({dit("cat")}); });
  CHECK_NOTHROW(make({dit(), encoder("text_encoder", 4), encoder("style_encoder", 6)}));
  expect_error(ErrorCode::kInvalidArgument, {"gives 4 values a token, the DiT takes 6"}, [] {
    make({dit("dit_low"), encoder("style_encoder", 4)});
  });
  expect_error(ErrorCode::kInvalidArgument, {"the VAE has 3 latent channels, the DiT 5"}, [] {
    make({encoder("vae", 1), dit("dit_low", 5)});
  });
  CHECK(make({})->latent_spec().pixel_multiple == 4);
  CHECK(make({dit("dit", 5)})->latent_spec().channels == 5);
  CHECK(make({dit("dit", 5)})->latent_spec().temporal_stride == 2);
  expect_error(ErrorCode::kEnvironment,
               {"pixel_multiple 2, which is no multiple of spatial_stride 4", "[PLUGIN_WRONG]"},
               [] { Pair({}, {}, {}, {.spatial_stride = 4, .pixel_multiple = 2}); });
}

TEST_CASE("Clips are encoded, denoised by the expert of the noise level, and decoded", "[kit]") {
  const auto model = make({encoder("vae", 1), dit(), encoder("text_encoder", 4),
                           encoder("style_encoder", 6), dit("dit_low")});
  DirectRunner runner;
  const c10::NoGradGuard no_grad;
  const at::Tensor latents = test::encode_latents(*model, at::ones({3, 5, 8, 4}), runner);
  CHECK(latents.sizes() == at::IntArrayRef({3, 3, 4, 2}));
  CHECK(test::decode(*model, latents.unsqueeze(0), runner).sizes() ==
        at::IntArrayRef({1, 3, 3, 8, 4}));
  expect_error(ErrorCode::kInvalidArgument, {"clip of 4 frames: one more than a multiple of 2"},
               [&] {
                 test::encode_latents(*model, at::ones({3, 4, 8, 4}), runner);
               });
  expect_error(ErrorCode::kInvalidArgument,
               {"image of 3 x 8 pixels: both sides are multiples of 2"}, [&] {
                 test::encode_latents(*model, at::ones({3, 1, 8, 3}), runner);
               });

  const Conditioning cond = model->encode(test::prompt_inputs("ab"), runner);
  CHECK(cond.at(kPromptEmbeds).sizes() == at::IntArrayRef({2, 4}));
  expect_error(ErrorCode::kInvalidArgument, {"prompt: 4 tokens and a half, at most 3"},
               [&] { model->encode(test::prompt_inputs("abcd"), runner); });
  const auto cutting = make({encoder("text_encoder", 4), encoder("style_encoder", 6)},
                            {.files = {}, .cuts_texts = true});
  CHECK(cutting->encode(test::prompt_inputs("abcd"), runner).at(kPromptEmbeds).size(0) == 3);

  const Conditioning* one[] = {&cond};
  const at::Tensor x = latents.unsqueeze(0);
  const at::Tensor expected = x * 4 + (2 * 4 + 6);
  CHECK(at::equal(model->denoise({x, at::tensor({0.9f}), one}, runner), expected));
  CHECK(at::equal(model->denoise({.x_BCTHW = x,
                                  .sigma_B = at::tensor({0.1f}, at::kDouble),
                                  .cond = one,
                                  .denoiser = "dit_low"},
                                 runner),
                  expected));
  expect_error(ErrorCode::kInvalidArgument, {"[B, 3, T, H, W] expected"}, [&] {
    model->denoise({x.narrow(1, 0, 2), at::tensor({0.9f}), one}, runner);
  });
  expect_error(ErrorCode::kInvalidArgument, {"multiples of 2; height and width in pixels"}, [&] {
    model->denoise({x.narrow(3, 0, 3), at::tensor({0.9f}), one}, runner);
  });
  expect_error(ErrorCode::kInvalidArgument, {"1 samples with sigmas of shape [2]"}, [&] {
    model->denoise({x, at::tensor({0.9f, 0.1f}), one}, runner);
  });
  Conditioning narrow = cond;
  narrow["style"] = at::ones({1, 5});
  const Conditioning* wrong[] = {&narrow};
  expect_error(ErrorCode::kInvalidArgument, {"style of shape [1, 5], [L, 6] expected"}, [&] {
    model->denoise({x, at::tensor({0.9f}), wrong}, runner);
  });
}

TEST_CASE("A denoiser is probed with its own entries, padded", "[kit]") {
  const auto model = make({dit("dit_low")});
  DirectRunner runner;
  const c10::NoGradGuard no_grad;
  const NamedTensors inputs = {{"latents", at::zeros({2, 3, 2, 2, 2})},
                               {"sigma", at::ones({2})},
                               {"prompt_embeds", at::ones({2, 3, 4})},
                               {"prompt_lengths", at::tensor({1, 3}, at::kLong)},
                               {"style", at::ones({2, 1, 6})}};
  const at::Tensor velocity = model->probe("dit_low", inputs, runner).at("velocity");
  CHECK(velocity[0].max().item<double>() == 4 + 6);
  CHECK(velocity[1].max().item<double>() == 12 + 6);
  NamedTensors more = inputs;
  more["image"] = at::ones({2, 7});
  CHECK(model->probe("dit_low", more, runner).at("velocity")[0].max().item<double>() == 17);
  more["image"] = at::ones({1, 7});
  expect_error(ErrorCode::kInvalidArgument, {"tensor 'image': shape [1, 7], 2 samples expected"},
               [&] { model->probe("dit_low", more, runner); });
  more["image_lengths"] = at::ones({2});
  expect_error(ErrorCode::kInvalidArgument, {"'image_lengths' is not known"},
               [&] { model->probe("dit_low", more, runner); });
  expect_error(ErrorCode::kNotFound, {"the vae is not loaded"},
               [&] { model->probe("vae", {}, runner); });
}

}  // namespace atelier
