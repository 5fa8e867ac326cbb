#include "host/plugins/guarded_family.h"

#include <functional>
#include <stdexcept>

#include "atelier/block.h"

#include "support/files.h"

using namespace atelier;
using test::expect_error;

namespace {

// What every function of the family and of its model throws; nothing: they give what is nothing.
std::function<void()> act;  // NOLINT(cert-err58-cpp)

// A block that throws, below a root.
struct BrokenNet final : nn::Module {
  struct Broken final : Block {
    using Block::Block;
    Tensors forward(const Tensors&) override { throw std::runtime_error("broken"); }
    std::string_view kind() const override { return "broken"; }
  };
  BrokenNet() : Module(nullptr, "") {}
  Broken block{this, "block"};
};

struct ThrowingModel final : Model {
  nn::Module& component(std::string_view) override {
    act();
    throw Error(ErrorCode::kNotFound, "nothing is here");
  }
  std::vector<Block*> blocks(std::string_view) override { return act(), std::vector<Block*>(); }
  LatentSpec latent_spec() const override { return act(), LatentSpec(); }
  MediaTarget target(const Inputs&, const MediaTarget&) const override {
    return act(), MediaTarget{7, 7, 7};
  }
  std::vector<int64_t> latent_shape(const MediaTarget&, const Conditioning&) const override {
    return act(), std::vector<int64_t>{7, 1, 7, 7};
  }
  bool runs(std::string_view, const Inputs&, int64_t, int64_t) const override {
    return act(), false;
  }
  Conditioning encode(const EncodeInputs&, BlockRunner&) override { return act(), Conditioning(); }
  TextLength text_length(const EncodeInputs&) const override { return act(), TextLength(); }
  at::Tensor denoise(const DenoiseInputs&, BlockRunner& runner) override {
    act();
    BrokenNet net;
    return runner.run(net.block, {}).front();
  }
  std::vector<WeightPtr> level_weights(std::string_view) override {
    return act(), std::vector<WeightPtr>(2, std::make_shared<Weight>("w", std::vector<int64_t>{1}));
  }
  void prepare_levels(std::string_view, std::span<const float>, BlockRunner&) override { act(); }
  void forget_levels() override { act(); }
  at::Tensor guide(const GuideInputs& in, BlockRunner&) override { return act(), in.with_BCTHW; }
  FinishedLatents to_decode(const at::Tensor& latents, const Conditioning&) const override {
    return act(), FinishedLatents{latents, 0};
  }
  std::vector<Piece> pieces(const Inputs&, const MediaTarget&) const override {
    return act(), std::vector<Piece>{{0, 7, 0}, {6, 7, 1}};
  }
  Sound decode_sound(const at::Tensor&, const Conditioning&, BlockRunner&) override {
    return act(), Sound{at::zeros({1, 7}), 70};
  }
  void decode(const at::Tensor&, BlockRunner&, const FrameSink& sink) override {
    act();
    sink(at::ones({1, 3, 1, 8, 8}));  // what LatentSpec says by default
  }
  std::optional<GivenLatents> given(const Conditioning&, at::IntArrayRef) const override {
    return act(), GivenLatents{at::ones({1, 1, 1, 1}), at::ones({1, 1, 1, 1})};
  }
  NamedTensors probe(std::string_view, const NamedTensors&, BlockRunner&) override {
    return act(), NamedTensors();
  }
  std::vector<int64_t> tokenize(std::string_view) const override {
    return act(), std::vector<int64_t>();
  }
};

struct ThrowingFamily final : ModelFamily {
  std::string_view name() const override { return "liar"; }
  std::string_view help() const override { return act(), ""; }
  std::span<const ComponentSpec> components() const override {
    return act(), std::span<const ComponentSpec>();
  }
  std::span<const InputSpec> inputs() const override { return act(), std::span<const InputSpec>(); }
  std::span<const EncodeStage> encode_stages() const override {
    return act(), std::span<const EncodeStage>();
  }
  std::span<const ScheduleDefaults> schedules() const override {
    return act(), std::span<const ScheduleDefaults>();
  }
  std::span<const SolverSpec> solvers() const override {
    return act(), std::span<const SolverSpec>();
  }
  ScheduleDefaults training_schedule(const Detection&) const override {
    return act(), ScheduleDefaults{.num_inference_steps = 7};
  }
  MediaDefaults media_defaults(const Detection&) const override {
    return act(), MediaDefaults{.fps = 7};
  }
  SigmaRange sigma_range(const Detection&) const override { return act(), SigmaRange{0.25, 0.5}; }
  std::optional<Detection> detect(const TensorIndex&, const DetectHint&) const override {
    return act(), std::nullopt;
  }
  void assign(std::span<FoundPart>) const override { act(); }
  ConfigFields config_fields(const Detection&) const override { return act(), ConfigFields(); }
  WeightMap weight_map(const Detection&) const override { return act(), WeightMap(); }
  LoraTargets lora_targets(const Detection&) const override { return act(), LoraTargets(); }
  std::vector<std::string> spellings(const Detection&) const override {
    return act(), std::vector<std::string>{"own", "other"};
  }
  std::unique_ptr<Model> make_model(std::span<const Detection>,
                                    const ModelOptions&) const override {
    return act(), std::make_unique<ThrowingModel>();
  }
  std::vector<Detection> tiny_parts() const override { return act(), std::vector<Detection>(); }
  Conditioning example_conditioning(const Detection&, int64_t, at::ScalarType) const override {
    return act(), Conditioning();
  }
};

using Calls = std::vector<std::pair<std::string, std::function<void()>>>;

struct Liar {
  ThrowingFamily wrapped;
  std::unique_ptr<const ModelFamily> family = plugins::guarded(wrapped, "\"/liar.so\"", "1.2");
  std::unique_ptr<Model> model;
  DirectRunner runner;
  Detection part;
  Conditioning cond;

  Liar() {
    act = [] {};
    model = family->make_model({}, {});
  }
  ~Liar() { act = nullptr; }
  Liar(const Liar&) = delete;
  Liar& operator=(const Liar&) = delete;

  // Functions that only say what there is.
  Calls questions() {
    return {{"help", [&] { family->help(); }},
            {"components", [&] { family->components(); }},
            {"inputs", [&] { family->inputs(); }},
            {"encode_stages", [&] { family->encode_stages(); }},
            {"schedules", [&] { family->schedules(); }},
            {"solvers", [&] { family->solvers(); }},
            {"training_schedule", [&] { family->training_schedule(part); }},
            {"media_defaults", [&] { family->media_defaults(part); }},
            {"sigma_range", [&] { family->sigma_range(part); }}};
  }
  Calls work() {
    return {{"detect", [&] { family->detect(TensorIndex({}, {}), {}); }},
            {"assign", [&] { family->assign({}); }},
            {"config_fields", [&] { family->config_fields(part); }},
            {"weight_map", [&] { family->weight_map(part); }},
            {"lora_targets", [&] { family->lora_targets(part); }},
            {"spellings", [&] { family->spellings(part); }},
            {"make_model", [&] { family->make_model({}, {}); }},
            {"tiny_parts", [&] { family->tiny_parts(); }},
            {"example_conditioning", [&] { family->example_conditioning(part, 1, at::kFloat); }},
            {"component", [&] { model->component("dit"); }},
            {"blocks", [&] { model->blocks("dit"); }},
            {"latent_spec", [&] { model->latent_spec(); }},
            {"target", [&] { model->target({}, {}); }},
            {"latent_shape", [&] { model->latent_shape({}, {}); }},
            {"runs", [&] { model->runs("control", {}, 0, 4); }},
            {"encode", [&] { model->encode({}, runner); }},
            {"text_length", [&] { model->text_length({}); }},
            {"denoise", [&] { model->denoise({}, runner); }},
            {"level_weights", [&] { model->level_weights("dit"); }},
            {"prepare_levels", [&] { model->prepare_levels("dit", {}, runner); }},
            {"forget_levels", [&] { model->forget_levels(); }},
            {"guide", [&] { model->guide({}, runner); }},
            {"decode",
             [&] {
               model->decode(at::ones({1, 1, 1, 1, 1}), runner, {});
             }},
            {"decode_sound", [&] { model->decode_sound({}, {}, runner); }},
            {"to_decode", [&] { model->to_decode({}, {}); }},
            {"pieces", [&] { model->pieces({}, {}); }},
            {"given", [&] { model->given(cond, {}); }},
            {"probe", [&] { model->probe("dit", {}, runner); }},
            {"tokenize", [&] { model->tokenize(""); }}};
  }
};

}  // namespace

TEST_CASE("Whatever a function of a plugin throws is an error that names it", "[plugins]") {
  Liar liar;
  Calls all = liar.questions();
  for (const auto& call : liar.work()) all.push_back(call);
  act = [] { throw Error(ErrorCode::kUnsupported, "not today", "ask again"); };
  for (const auto& [name, call] : all)
    expect_error(ErrorCode::kUnsupported, {"liar." + name + ": not today; ask again"}, call);
  act = [] { throw Error(ErrorCode::kCancelled, "stopped"); };
  for (const auto& [name, call] : all) expect_error(ErrorCode::kCancelled, {"stopped"}, call);
}

TEST_CASE("What a family refuses of the user's inputs is told without its function", "[plugins]") {
  Liar liar;
  act = [] { throw Error(ErrorCode::kInvalidArgument, "motion_video: too short", "give more"); };
  for (const auto& [name, call] : liar.work()) {
    const bool judges = name == "target" || name == "pieces";
    CHECK(test::error_of(call).message() ==
          (judges ? "" : "liar." + name + ": ") + "motion_video: too short");
  }
}

TEST_CASE("What is no error of the SDK names the plugin's file", "[plugins]") {
  Liar liar;
  act = [] { throw std::runtime_error("a bad\nday"); };
  for (const auto& [name, call] : liar.questions())
    expect_error(ErrorCode::kEnvironment,
                 {"liar." + name + ": \"/liar.so\": it throws \"a bad\"", "[PLUGIN_THROWS]"}, call);
  for (const auto& [name, call] : liar.work())
    expect_error(ErrorCode::kEnvironment,
                 {"liar." + name + ": \"/liar.so\": it throws a bad;", "[PLUGIN_THROWS]"}, call);
  act = [] { throw 5; };
  for (const auto& [name, call] : liar.work())
    expect_error(ErrorCode::kEnvironment,
                 {"liar." + name + ": \"/liar.so\": it throws an exception that is not"}, call);
  act = [] { throw std::bad_alloc(); };
  for (const auto& [name, call] : liar.work())
    expect_error(ErrorCode::kOutOfMemory, {"liar." + name}, call);
}

TEST_CASE("What leaves a block names it", "[plugins]") {
  Liar liar;
  expect_error(ErrorCode::kEnvironment,
               {"liar.denoise in block: \"/liar.so\": it throws broken;", "[PLUGIN_THROWS]"},
               [&] { liar.model->denoise({}, liar.runner); });
}

TEST_CASE("A guarded family answers as the family does, defaults of the SDK aside", "[plugins]") {
  Liar liar;
  CHECK(liar.family->name() == "liar");
  CHECK(plugins::plugin_version(*liar.family) == "1.2");
  CHECK(plugins::plugin_version(liar.wrapped).empty());
  CHECK(liar.family->training_schedule(liar.part).num_inference_steps == 7);
  CHECK(liar.family->media_defaults(liar.part).fps == 7);
  CHECK(liar.family->sigma_range(liar.part).low == 0.25);
  CHECK(liar.family->spellings(liar.part) == std::vector<std::string>{"own", "other"});
  CHECK(liar.model->target({}, {}).frames == 7);
  CHECK(liar.model->latent_shape({}, {}) == std::vector<int64_t>{7, 1, 7, 7});
  CHECK(liar.model->level_weights("dit").size() == 2);
  CHECK(liar.model->given(liar.cond, {}).has_value());
  CHECK(liar.model->pieces({}, {13, 1, 1}).size() == 2);
  CHECK_FALSE(liar.model->runs("control", {}, 0, 4));
  CHECK(liar.model->decode_sound({}, {}, liar.runner).sample_rate == 70);
  const at::Tensor with = at::ones({1}), latents = at::ones({1, 1, 1, 1, 1});
  CHECK(liar.model->to_decode(latents, {}).latents_BCTHW.is_same(latents));
  CHECK(liar.model->guide({with, at::zeros({1}), 3.0, {}}, liar.runner).is_same(with));
}

TEST_CASE("What the host does with frames is not the plugin's mistake", "[plugins]") {
  Liar liar;
  const FrameSink full = [](const at::Tensor&) {
    throw Error(ErrorCode::kEnvironment, "the disk is full");
  };
  const Error error = test::error_of([&] {
    liar.model->decode(at::ones({1, 3, 1, 1, 1}), liar.runner, full);
  });
  CHECK(error.message() == "the disk is full");
}
