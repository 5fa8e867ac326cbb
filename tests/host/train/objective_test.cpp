#include "host/train/objective.h"

#include <c10/util/ScopeExit.h>

#include "atelier/host/weight_state.h"

#include "host/random/counter.h"
#include "host/random/noise.h"
#include "train_toy.h"

namespace atelier::train {
namespace {

using samples::RowValues;
using samples::Timestep;
using samples::Timesteps;
using samples::TrainSample;
using samples::Weighting;

using test::toy_sample;
using test::TrainToy;

struct ObjectiveBench : TrainToy {
  DirectRunner runner;
  std::unique_ptr<Timesteps> timesteps;
  std::unique_ptr<Objective> objective;

  ObjectiveBench() {
    open();
    config.timesteps.weighting = Weighting::kSigmaSqrt;
    timesteps = std::make_unique<Timesteps>(ScheduleDefaults{}, config.timesteps);
    objective = std::make_unique<Objective>(*model, model->stages().denoisers, runner, *timesteps,
                                            config.seed);
  }
  at::Tensor velocity(const TrainSample& sample, const at::Tensor& x, float sigma) {
    const Conditioning* cond[] = {&sample.cond};
    return model->model().denoise({x.unsqueeze(0), at::full({1}, sigma), cond}, runner)[0];
  }
  // Mean((velocity - target)^2 * mask) with noise of `key`.
  at::Tensor error(const TrainSample& sample, const random::NoiseKey& key, float sigma) {
    const at::Tensor& clean = sample.cond.at("latents");
    const at::Tensor noise = random::normal_noise(key, clean.sizes());
    const at::Tensor x = clean * (1 - sigma) + noise * sigma;
    at::Tensor squares = (velocity(sample, x, sigma) - (noise - clean)).pow(2);
    if (sample.mask.defined()) squares = squares * sample.mask;
    return squares.mean();
  }
};

TEST_CASE("The loss of flow matching is the weighted error of the velocity", "[objective]") {
  ObjectiveBench bench;
  const uint64_t noise_seed = random::stream_seed(bench.config.seed, random::Stream::kNoise);
  const uint64_t level_seed = random::stream_seed(bench.config.seed, random::Stream::kTimestep);
  std::vector<StepSample> batch = {{toy_sample(1), 3}, {toy_sample(2), 4}};
  batch[1].sample.mask = at::rand({1, 1, 4, 4});
  at::Tensor expected = at::zeros({});
  for (const StepSample& placed : batch) {
    const Timestep level = bench.timesteps->draw(level_seed, placed.slot, 7, 4);
    expected = expected +
               bench.error(placed.sample, {noise_seed, placed.slot, 7}, level.sigma) * level.weight;
  }
  const at::Tensor loss = bench.objective->flow_matching(batch, 7);
  CHECK(at::allclose(loss, expected, 1e-5));
  CHECK_FALSE(at::allclose(bench.objective->flow_matching(batch, 8), loss, 1e-3));
}

TEST_CASE("Noise that was made ahead is the noise of the step", "[objective]") {
  ObjectiveBench bench;
  const Objective elsewhere(*bench.model, bench.model->stages().denoisers, bench.runner,
                            *bench.timesteps, bench.config.seed, at::kMeta);
  std::vector<StepSample> batch = {{toy_sample(1), 3}, {toy_sample(2), 4}};
  const at::Tensor loss = bench.objective->flow_matching(batch, 7);
  for (StepSample& placed : batch) {
    bench.objective->read_ahead(placed, 7, /*makes_noise=*/true);
    CHECK_FALSE(placed.noise.defined());  // nothing is copied
    elsewhere.read_ahead(placed, 7, /*makes_noise=*/false);
    CHECK_FALSE(placed.noise.defined());
    elsewhere.read_ahead(placed, 7, /*makes_noise=*/true);
    REQUIRE(placed.noise.is_cpu());
  }
  CHECK(at::equal(bench.objective->flow_matching(batch, 7), loss));
  batch[0].noise = batch[1].noise;
  CHECK_FALSE(at::equal(bench.objective->flow_matching(batch, 7), loss));
}

TEST_CASE("A batch has the loss of its samples", "[objective]") {
  ObjectiveBench bench;
  const std::vector<StepSample> batch = {{toy_sample(1), 0}, {toy_sample(2), 1}};
  const at::Tensor apart = bench.objective->flow_matching(std::span(batch).first(1), 0) +
                           bench.objective->flow_matching(std::span(batch).last(1), 0);
  CHECK(at::allclose(bench.objective->flow_matching(batch, 0), apart, 1e-5));
}

TEST_CASE("The family is asked once which denoiser a noise level is for", "[objective]") {
  ObjectiveBench bench;
  const int before = test::num_ranges_asked;
  bench.objective->flow_matching(std::vector<StepSample>{{toy_sample(1), 0}, {toy_sample(2), 1}},
                                 0);
  CHECK(test::num_ranges_asked == before);
}

TEST_CASE("Validation has one error for each level", "[objective]") {
  ObjectiveBench bench;
  const TrainSample sample = toy_sample(3);
  const std::vector<Timestep> levels = bench.timesteps->grid(3);
  const at::Tensor losses = bench.objective->at_levels(sample, levels, 11, 5);
  REQUIRE(losses.sizes() == at::IntArrayRef({3}));
  for (int64_t i = 0; i < 3; ++i) {
    const random::NoiseKey key = {11, 5, static_cast<uint32_t>(i)};
    const float sigma = levels[static_cast<size_t>(i)].sigma;
    CHECK(at::allclose(losses[i], bench.error(sample, key, sigma), 1e-5));
  }
}

TEST_CASE("Distillation compares where the sampler's steps lead, with gradients", "[objective]") {
  ObjectiveBench bench;
  TrainSample sample = toy_sample(4);
  sample.values = {{"seed", 9}, {"num_inference_steps", "2"}};
  const at::Tensor& clean = sample.cond.at("latents");
  at::Tensor x = random::normal_noise({9}, clean.sizes());
  for (const float sigma : {1.0F, 0.5F}) x = x - bench.velocity(sample, x, sigma) * 0.5F;
  bench.weight("embed.weight").state().set_trainable(true);
  const std::vector<StepSample> batch = {{sample, 0}};
  const at::Tensor loss = bench.objective->direct_distillation(batch);
  CHECK(at::allclose(loss, (x - clean).pow(2).mean(), 1e-4));
  loss.backward();
  CHECK(bench.weight("embed.weight").state().leaf().grad().abs().max().item<float>() > 0);
}

// Beside a process whose rows have more steps.
TEST_CASE("Runs of a denoiser that a batch does not need change nothing", "[objective]") {
  ObjectiveBench bench;
  std::vector<StepSample> batch = {{toy_sample(4), 0}, {toy_sample(5), 1}};
  batch[0].sample.values = {{"seed", 9}, {"num_inference_steps", "2"}};
  batch[1].sample.values = {{"seed", 7}, {"num_inference_steps", 1}};
  CHECK(bench.objective->distillation_calls(batch[0].sample.values) == std::vector<int64_t>{2});
  bench.weight("embed.weight").state().set_trainable(true);
  const at::Tensor leaf = bench.weight("embed.weight").state().leaf();
  const auto learn = [&](std::vector<int64_t> calls, int expected) {
    int runs = 0, backward_runs = 0;
    const test::HookScope hook([&](const at::Tensor& velocity) {
      ++runs;
      velocity.register_hook([&](const at::Tensor&) { ++backward_runs; });
      return velocity;
    });
    const at::Tensor loss = bench.objective->direct_distillation(batch, calls);
    leaf.mutable_grad() = at::Tensor();
    loss.backward();
    CHECK(runs == expected);
    CHECK(backward_runs == expected);
    return std::pair(loss.detach(), leaf.grad().clone());
  };
  const auto [loss, gradient] = learn({}, 3);
  for (const int64_t calls : {3, 5}) {
    const auto [other_loss, other_gradient] = learn({calls}, static_cast<int>(calls));
    CHECK(at::equal(other_loss, loss));
    CHECK(at::equal(other_gradient, gradient));
  }
  test::expect_error(ErrorCode::kInternal, {"dit 1 times too often"},
                     [&] { bench.objective->direct_distillation(batch, std::vector<int64_t>{2}); });
}

// All runs of processes in lockstep go back to the first block, as those behind the first do.
TEST_CASE("In lockstep the first run of a sample has a backward pass as well", "[objective]") {
  ObjectiveBench bench;
  std::vector<StepSample> batch = {{toy_sample(4), 0}};
  batch[0].sample.values = {{"seed", 9}, {"num_inference_steps", 1}};
  bool requires_grad = false;
  const test::HookScope hook([&](const at::Tensor& velocity) {
    requires_grad = velocity.requires_grad();
    return velocity;
  });
  bench.objective->direct_distillation(batch);
  CHECK_FALSE(requires_grad);
  bench.objective->direct_distillation(batch, std::vector<int64_t>{1});
  CHECK(requires_grad);
}

TEST_CASE("What is learnt in front of a masked clip counts", "[objective]") {
  ObjectiveBench bench;
  const uint64_t noise_seed = random::stream_seed(bench.config.seed, random::Stream::kNoise);
  const uint64_t level_seed = random::stream_seed(bench.config.seed, random::Stream::kTimestep);
  std::vector<StepSample> batch = {{toy_sample(1), 3}};
  TrainSample& sample = batch[0].sample;
  at::Tensor& latents = sample.cond["latents"];
  latents = at::cat({at::randn_like(latents), latents}, 1);
  const at::Tensor of_clip = at::rand({1, 1, 4, 4});
  sample.mask = of_clip;
  const Timestep level = bench.timesteps->draw(level_seed, 3, 7, 8);
  const at::Tensor loss = bench.objective->flow_matching(batch, 7);
  sample.mask = at::cat({at::ones_like(of_clip), of_clip}, 1);
  const at::Tensor expected = bench.error(sample, {noise_seed, 3, 7}, level.sigma) * level.weight;
  CHECK(at::allclose(loss, expected, 1e-5));
  // A mask of as many frames as are learnt is not one of the clip.
  CHECK_THROWS_AS(bench.objective->flow_matching(batch, 7), Error);
}

TEST_CASE("Latents that are given stay clean in a step, and do not count", "[objective]") {
  for (const bool is_noised : {false, true}) {
    ObjectiveBench bench;
    const uint64_t noise_seed = random::stream_seed(bench.config.seed, random::Stream::kNoise);
    const uint64_t level_seed = random::stream_seed(bench.config.seed, random::Stream::kTimestep);
    std::vector<StepSample> batch = {{toy_sample(1), 3}, {toy_sample(2), 4}};
    batch[0].sample.mask = at::rand({1, 1, 4, 4});
    // The first sample alone has two rows of other values than its own.
    const at::Tensor first = batch[0].sample.cond.at("latents"), values = at::randn_like(first);
    at::Tensor free = at::ones_like(first.narrow(0, 0, 1));
    free.narrow(2, 0, 2).zero_();
    test::given_hook = [&](const Conditioning& cond) -> std::optional<GivenLatents> {
      if (!at::equal(cond.at("latents"), first)) return std::nullopt;
      return GivenLatents{values, free, is_noised};
    };
    const auto forget = c10::make_scope_exit([] { test::given_hook = nullptr; });
    at::Tensor expected = at::zeros({});
    for (const StepSample& placed : batch) {
      const at::Tensor& clean = placed.sample.cond.at("latents");
      const Timestep level = bench.timesteps->draw(level_seed, placed.slot, 7, 4);
      const at::Tensor noise = random::normal_noise({noise_seed, placed.slot, 7}, clean.sizes());
      at::Tensor x = clean * (1 - level.sigma) + noise * level.sigma;
      const bool is_given = clean.is_same(first);
      if (is_given && !is_noised) x = at::where(free == 0, values, x);
      at::Tensor squares = (bench.velocity(placed.sample, x, level.sigma) - (noise - clean)).pow(2);
      // The mean over what is free.
      if (is_given) squares = (squares * placed.sample.mask).narrow(2, 2, 2);
      expected = expected + squares.mean() * level.weight;
    }
    CHECK(at::allclose(bench.objective->flow_matching(batch, 7), expected, 1e-5));
  }
}

TEST_CASE("Latents that are given are kept while they are distilled, and do not count",
          "[objective]") {
  for (const bool is_noised : {false, true}) {
    ObjectiveBench bench;
    TrainSample sample = toy_sample(4);
    sample.values = {{"seed", 9}, {"num_inference_steps", "2"}};
    const at::Tensor& clean = sample.cond.at("latents");
    at::Tensor free = at::ones_like(clean.narrow(0, 0, 1));
    free.narrow(2, 0, 2).zero_();
    test::given_hook = [&](const Conditioning&) { return GivenLatents{clean, free, is_noised}; };
    const auto forget = c10::make_scope_exit([] { test::given_hook = nullptr; });
    const at::Tensor noise = random::normal_noise({9}, clean.sizes());
    const auto kept = [&](const at::Tensor& x, double sigma) {
      return at::where(free == 0, is_noised ? clean * (1 - sigma) + noise * sigma : clean, x);
    };
    at::Tensor x = kept(noise, 1.0);
    x = kept(x - bench.velocity(sample, x, 1.0F) * 0.5F, 0.5);
    x = kept(x - bench.velocity(sample, x, 0.5F) * 0.5F, 0.0);
    const std::vector<StepSample> batch = {{sample, 0}};
    const at::Tensor loss = bench.objective->direct_distillation(batch);
    CHECK(at::allclose(loss, ((x - clean).pow(2) * free).mean() / free.mean(), 1e-4));
    test::given_hook = nullptr;
    CHECK_FALSE(at::allclose(bench.objective->direct_distillation(batch), loss, 1e-3));
  }
}

TEST_CASE("A row that says too little for distillation is refused", "[objective]") {
  const auto problem = [](const RowValues& values) { return distillation_problem(values); };
  CHECK(problem({{"seed", 1}, {"num_inference_steps", 4}, {"rand_device", "cpu"}}).empty());
  CHECK(problem({{"num_inference_steps", 4}}).find("seed") != std::string::npos);
  CHECK(problem({{"seed", "1.5"}, {"num_inference_steps", 4}}).find("seed") != std::string::npos);
  CHECK(problem({{"seed", 1}}).find("num_inference_steps") != std::string::npos);
  CHECK(problem({{"seed", 1}, {"num_inference_steps", 4}, {"rand_device", "tpu"}})
            .find("rand_device") != std::string::npos);
  ObjectiveBench bench;
  const std::vector<StepSample> batch = {{toy_sample(1), 0}};
  test::expect_error(ErrorCode::kInvalidArgument, {"seed"},
                     [&] { bench.objective->direct_distillation(batch); });
}

}  // namespace
}  // namespace atelier::train
