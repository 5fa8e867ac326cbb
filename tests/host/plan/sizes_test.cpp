// What a plan knows of a run: found by the generator and by the objective, run without values.
#include <ATen/core/grad_mode.h>

#include "host/generate/request.h"
#include "host/plan/activation_strategies.h"
#include "host/plan/dry_generation.h"
#include "host/plan/planning.h"
#include "host/plan/run_sizes.h"
#include "host/train/global_batch.h"
#include "tests/host/train/image_toy.h"

namespace atelier::plan {
namespace {

using memory::PlannedPhase;
using memory::Strategy;
using Names = std::vector<std::string>;
using test::ToyModel;

constexpr float kBoundary = 0.5F;

// What a denoiser was given.
struct Seen {
  std::string denoiser;
  int64_t rows = 0;
  bool operator==(const Seen&) const = default;
};

struct Log {
  std::vector<Seen> steps;
  std::map<std::string, std::vector<float>> levels;  // that were prepared, by denoiser
};
Log seen;

// The toy with a second denoiser, for the levels below the boundary.
class TwoToys final : public ToyModel {
 public:
  TwoToys(std::span<const Detection> parts, const ModelOptions& options)
      : ToyModel(parts, options, {}), low_(low_parts(parts), options, {}) {}

  nn::Module& component(std::string_view name) override {
    return name == "dit_low" ? low_.component("dit") : ToyModel::component(name);
  }
  std::vector<Block*> blocks(std::string_view name) override {
    return name == "dit_low" ? low_.blocks("dit") : ToyModel::blocks(name);
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    seen.steps.push_back({std::string(in.denoiser), in.x_BCTHW.size(0)});
    return in.denoiser == "dit_low" ? low_.denoise(in, runner) : ToyModel::denoise(in, runner);
  }
  void prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                      BlockRunner&) override {
    seen.levels[std::string(denoiser)].assign(sigmas.begin(), sigmas.end());
  }

 private:
  static std::vector<Detection> low_parts(std::span<const Detection> parts) {
    std::vector<Detection> low;
    for (Detection part : parts) {
      if (part.component != "dit_low") continue;
      part.component = "dit";
      low.push_back(part);
    }
    return low;
  }

  ToyModel low_;
};

class TwoToysFamily final : public test::ImageToy {
 public:
  std::span<const ComponentSpec> components() const override {
    static constexpr ComponentSpec kSpecs[] = {
        {"text_encoder", Role::kTextEncoder, true, "a table"},
        {"vae", Role::kVae, true, "folded pixels"},
        {"dit", Role::kDenoiser, true, "for much noise"},
        {"dit_low", Role::kDenoiser, true, "for little noise"},
        {"tokenizer", Role::kTokenizer, true, "any folder with a tokenizer.json"}};
    return kSpecs;
  }
  std::optional<Detection> detect(const TensorIndex& in, const DetectHint& hint) const override {
    if (hint.component != "dit_low") return ImageToy::detect(in, hint);
    std::optional<Detection> found = ImageToy::detect(in, {});
    found->component = "dit_low";
    return found;
  }
  SigmaRange sigma_range(const Detection& denoiser) const override {
    if (denoiser.component == "dit_low") return {.low = 0, .high = kBoundary};
    return {.low = kBoundary, .high = 1};
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    return std::make_unique<TwoToys>(parts, options);
  }
};

const TwoToysFamily& two_toys() {
  static const TwoToysFamily family;
  return family;
}

struct SizesWorkshop {
  test::Folder folder;
  std::unique_ptr<model::LoadedModel> model;
  PlanBasis basis{.profile = memory::known_profile("h200").value()};
  order::Generation order;
  GenerationBasis generation{.order = &order};
  order::Training config;
  parameters::Selection selection;

  SizesWorkshop() {
    test::write_toy_model(folder / "model");
    test::fs::copy(folder / "model/transformer", folder / "model/dit_low");
    nlohmann::json paths;
    for (const char* part : {"text_encoder", "vae", "transformer", "dit_low"})
      paths.push_back(folder / (std::string("model/") + part));
    model =
        model::LoadedModel::open(two_toys(), {.model_paths = paths.dump(),
                                              .tokenizer_path = folder / "model/tokenizer",
                                              .hints = {{"*dit_low*", {.component = "dit_low"}}},
                                              .dtype = "float32",
                                              .device = "cpu"});
    generation.request.inputs["prompt"] = std::string("a lighthouse");
    generation.request.negative_prompt = "grey";
    generation.request.target = {1, 32, 32};
    generation.request.sigmas = {1.0F, 0.9F, 0.6F, 0.4F, 0.0F};
    generation.request.cfg_scale = 4;
    config.stage = order::Stage::kTrain;
    config.lora.rank = 4;
    seen = {};
  }

  SizedRun generate() { return size_generation(*model, generation, basis); }
  SizedRun train(const std::vector<std::string>& components, int64_t distillation_steps = 0) {
    config.lora.base_models = components;
    config.lora.target_modules = {"q", "down"};
    config.task = distillation_steps > 0 ? order::Task::kDirectDistill : order::Task::kSft;
    report::Problems problems;
    selection = parameters::select_trained(*model, config, problems);
    problems.throw_if_any();
    return size_training(*model,
                         {.config = &config,
                          .selection = &selection,
                          .target = {1, 32, 32},
                          .distillation_steps = std::max<int64_t>(1, distillation_steps)},
                         basis);
  }
};

const PlannedPhase& phase(const SizedRun& sized, const std::string& name) {
  const auto found = std::ranges::find(sized.run.phases, name, &PlannedPhase::name);
  INFO(name);
  REQUIRE(found != sized.run.phases.end());
  return *found;
}

Names names_of(const SizedRun& sized) {
  Names names;
  for (const PlannedPhase& phase : sized.run.phases) names.push_back(phase.name);
  return names;
}

}  // namespace

TEST_CASE("Processes of a machine share its host memory", "[plan]") {
  SizesWorkshop shop;
  shop.config.ranks = {.size = 4, .local_size = 4};
  const SizedRun sized = shop.train({"dit"});
  REQUIRE_FALSE(sized.run.components.empty());
  for (const memory::PlannedComponent& component : sized.run.components)
    CHECK(component.host_sharers == 4);
  PlanTarget target;
  target.limits = {.device_bytes = 100, .host_bytes = 4096};
  share_host(target, 4);
  CHECK(target.limits.host_bytes == 1024);
  CHECK(target.limits.device_bytes == 100);
  SizedRun large = sized;
  for (memory::Strategy& strategy : large.run.phases.back().strategies) strategy.host_bytes = 1025;
  test::expect_error(ErrorCode::kOutOfMemory,
                     {" of host memory, which is what each of 4 processes has"},
                     [&] { plan_or_refuse(large, target, {}); });
  target.limits.host_bytes = INT64_MAX;  // nobody knows it
  share_host(target, 4);
  CHECK(target.limits.host_bytes == INT64_MAX);
}

TEST_CASE("Every denoiser is planned, with its own steps and without the other one", "[plan]") {
  SizesWorkshop shop;
  SECTION("one image") {
    const SizedRun sized = shop.generate();
    CHECK(names_of(sized) == Names{"encode", "denoise with dit", "denoise with dit_low", "decode"});
    CHECK(phase(sized, "encode").components == Names{"text_encoder"});
    CHECK(phase(sized, "denoise with dit").components == Names{"dit"});
    CHECK(phase(sized, "denoise with dit").passes == 3);
    CHECK(phase(sized, "denoise with dit_low").components == Names{"dit_low"});
    CHECK(phase(sized, "denoise with dit_low").passes == 1);
    CHECK(phase(sized, "decode").components == Names{"dit_low", "vae"});
    for (const char* name : {"denoise with dit", "denoise with dit_low"}) {
      CHECK(phase(sized, name).strategies.size() == 2);
      for (const Strategy& strategy : phase(sized, name).strategies) {
        CHECK(strategy.device_bytes > 0);
        CHECK(strategy.forward.size() == 1);
      }
    }
    CHECK(sized.main_phase == "denoise with dit");
    REQUIRE(sized.layouts.size() == 2);
    CHECK(sized.layouts[0].batches_cfg);
    CHECK(!sized.layouts[1].batches_cfg);
  }
  SECTION("several images: the VAE stays beside the next one's steps") {
    shop.generation.images = 3;
    const SizedRun sized = shop.generate();
    CHECK(phase(sized, "denoise with dit").components == Names{"dit", "vae"});
    CHECK(phase(sized, "denoise with dit").passes == 9);
    CHECK(phase(sized, "decode").passes == 3);
  }
  SECTION("requests that come later find everything that was loaded") {
    shop.order.prompts_file = "-";
    const SizedRun sized = shop.generate();
    CHECK(phase(sized, "encode").components == Names{"dit_low", "text_encoder", "vae"});
    CHECK(phase(sized, "encode").passes == 2);
  }
}

TEST_CASE("The negative prompt is planned where a step is guided", "[plan]") {
  SizesWorkshop shop;
  generate::Request& request = shop.generation.request;
  SECTION("every step") {
    const SizedRun sized = shop.generate();
    CHECK(phase(sized, "encode").passes == 2);
    CHECK(phase(sized, "denoise with dit").strategies[0].repeats == 1);
    CHECK(phase(sized, "denoise with dit").strategies[1].repeats == 2);
  }
  SECTION("no step") {
    SECTION("for the scale") {
      request.cfg_scale = 1;
    }
    SECTION("for the truncation") {
      request.cfg_trunc = 0;
    }
    const SizedRun sized = shop.generate();
    CHECK(phase(sized, "encode").passes == 1);
    CHECK(phase(sized, "denoise with dit").strategies.size() == 1);
    CHECK(phase(sized, "denoise with dit").strategies[0].repeats == 1);
    REQUIRE(sized.layouts.size() == 1);
    CHECK(!sized.layouts[0].batches_cfg);
    CHECK(std::ranges::count(seen.steps, Seen{"dit", 2}) ==
          1);  // of a batch of two, to know what that takes
  }
  SECTION("the first two of four steps") {
    request.cfg_trunc = 0.3;
    const SizedRun sized = shop.generate();
    CHECK(phase(sized, "encode").passes == 2);
    CHECK(phase(sized, "denoise with dit").strategies[1].repeats == Approx(5.0 / 3.0));
    CHECK(phase(sized, "denoise with dit_low").strategies[1].repeats == 1);
  }
}

TEST_CASE("Levels are prepared as the generator does it, without the last one", "[plan]") {
  SizesWorkshop shop;
  shop.generate();
  CHECK(seen.levels.at("dit") == std::vector<float>{1.0F, 0.9F, 0.6F});
  CHECK(seen.levels.at("dit_low") == std::vector<float>{0.4F});
}

TEST_CASE("A dry generation makes one of the steps that are alike", "[plan]") {
  SizesWorkshop shop;
  const at::NoGradGuard no_grad;
  DryModel dry(*shop.model, at::kCPU);
  DryGeneration generation(dry, *shop.model);
  generate::Request request = shop.generation.request;
  request.seeds = {1};
  const std::vector<DryPhase> phases = generation.run(request);
  CHECK((seen.steps == std::vector<Seen>{{"dit", 2}, {"dit_low", 2}}));
  const auto denoise = std::ranges::find(phases, "dit", &DryPhase::denoiser);
  REQUIRE(denoise != phases.end());
  CHECK(denoise->passes == 3);
  REQUIRE(denoise->pass.blocks.size() == 2);
  CHECK(denoise->pass.blocks.begin()->second.runs == 3);
}

TEST_CASE("What a dry model is given once is counted each time", "[plan]") {
  SizesWorkshop shop;
  DryModel dry(*shop.model, at::kCPU);
  int num_runs = 0;
  const DryModel::Function twice = [&](const at::Tensor& in) {
    ++num_runs;
    return at::cat({in, in});
  };
  dry.lap();
  const at::Tensor in = dry.tensor({3, 5}, at::kFloat);
  CHECK(dry.once(twice, in).sizes() == at::IntArrayRef{6, 5});
  const int64_t written = dry.lap().work.written_bytes;
  CHECK(dry.once(twice, in).sizes() == at::IntArrayRef{6, 5});
  CHECK(dry.lap().work.written_bytes >= written - 3 * 5 * 4);
  CHECK(num_runs == 1);
  dry.once(twice, dry.tensor({4, 5}, at::kFloat));
  CHECK(num_runs == 2);
}

TEST_CASE("Training is planned with the denoiser that it trains, at a level of its own", "[plan]") {
  SizesWorkshop shop;
  for (const std::string component : {"dit", "dit_low"}) {
    seen = {};
    const SizedRun sized = shop.train({component});
    CHECK(phase(sized, "train").components == Names{component});
    CHECK(phase(sized, "train").strategies.front().forward.contains(component));
    REQUIRE(!seen.steps.empty());
    CHECK(std::ranges::all_of(seen.steps,
                              [&](const Seen& step) { return step.denoiser == component; }));
  }
}

TEST_CASE("Distillation is planned with all its steps", "[plan]") {
  SizesWorkshop shop;
  const auto keep_all = [](const SizedRun& sized) {
    return phase(sized, "train").strategies.front();
  };
  const Strategy one = keep_all(shop.train({"dit", "dit_low"}, 1));
  const Strategy four = keep_all(shop.train({"dit", "dit_low"}, 4));
  CHECK(one.name == "keep all activations");
  CHECK(four.device_bytes > one.device_bytes);
  // The schedule's steps below the boundary are the other denoiser's.
  CHECK(one.repeats == 1);
  CHECK(four.repeats > 1);
}

TEST_CASE("A process plans its own rows, and its own batches of a step", "[plan]") {
  SizesWorkshop shop;
  shop.config.order.gradient_accumulation_steps = 3;
  const auto step = [&] { return phase(shop.train({"dit"}), "train").strategies.front(); };
  const Strategy alone = step();
  CHECK(alone.repeats == 3);
  report::Problems problems;
  shop.config.ranks.size = 4;
  shop.config.sequence_parallel = 2;
  train::share_batch(shop.config, shop.config.ranks.size / shop.config.sequence_parallel, problems);
  REQUIRE(shop.config.order.gradient_accumulation_steps == 6);  // of all processes
  const Strategy shared = step();
  CHECK(shared.repeats == 3);
  for (size_t block = 0; block < 2; ++block) {
    CHECK(shared.forward.at("dit")[block] == Approx(alone.forward.at("dit")[block] / 2));
    CHECK(shared.backward.at("dit")[block] == Approx(alone.backward.at("dit")[block] / 2));
  }
  CHECK(shared.device_bytes < alone.device_bytes);
}

TEST_CASE("A block that goes backward meets the gradients of those behind it", "[plan]") {
  SizesWorkshop shop;
  DryModel::TrainingPass pass;
  const auto costs = std::make_shared<memory::BlockCosts>();
  costs->operators = {{.name = "linear", .bytes = 7, .seconds = 1.0}};
  costs->held_bytes = 10;
  costs->whole_bytes = 40;
  costs->working_bytes = 100;
  pass.blocks = shop.model->model().blocks("dit");
  REQUIRE(pass.blocks.size() == 2);
  pass.runs = {costs, costs};
  pass.gradients = {50, 50};
  const memory::ActivationPlan least =
      plan_of(pass, {.kind = memory::ActivationBudget::Kind::kFraction});
  // The first block's input, its output, the gradient of that, what it works with.
  CHECK(backward_bytes(pass, least, /*held=*/1.0, /*ranks=*/1, false) == 10 + 10 + 100 + 50);
  CHECK(backward_bytes(pass, least, /*held=*/0.5, /*ranks=*/1, false) == 10 + 10 + 100 + 25);
  CHECK(backward_bytes(pass, least, /*held=*/1.0, /*ranks=*/2, false) == 60 + 50 + 50);
  CHECK(backward_bytes(pass, least, /*held=*/0.0, /*ranks=*/1, false) == least.peak_bytes);
  // What is run twice has one gradient.
  pass.blocks[1] = pass.blocks[0];
  CHECK(backward_bytes(pass, least, /*held=*/1.0, /*ranks=*/1, false) == 10 + 10 + 100 + 50);
}

TEST_CASE("The optimizer's own state is what a plan counts", "[plan]") {
  SizesWorkshop shop;
  const auto resting = [&](optim::Kind kind) {
    shop.config.optimizer.kind = kind;
    return phase(shop.train({"dit"}), "train").strategies.back().device_bytes;
  };
  const int64_t adamw = resting(optim::Kind::kAdamW);
  CHECK(resting(optim::Kind::kProdigy) > adamw);
  CHECK(resting(optim::Kind::kAdafactor) < adamw);
}

}  // namespace atelier::plan
