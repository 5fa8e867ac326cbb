#include "host/train/train_step.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include "atelier/host/weight_state.h"

#include "train_toy.h"

namespace atelier::train {
namespace {

using order::Training;
using samples::Timesteps;

using test::StepBench;
using test::toy_step;
using test::TrainToy;

static_assert(!std::is_copy_constructible_v<StepMemory> &&
              !std::is_move_constructible_v<StepMemory>);

// A step by LibTorch's own optimizer, on leaves of another model of the same files.
struct Reference {
  TrainToy toy;
  DirectRunner runner;
  std::vector<std::string> names;
  std::vector<at::Tensor> leaves;
  std::unique_ptr<torch::optim::AdamW> optimizer;

  explicit Reference(const Training& config) {
    toy.config = config;
    toy.open();
    for (const auto& trained : toy.selection().weights) {
      trained.weight->state().set_trainable(true);
      names.push_back(trained.component + "." + trained.path);
      leaves.push_back(trained.weight->state().leaf());
    }
    optimizer = std::make_unique<torch::optim::AdamW>(
        leaves, torch::optim::AdamWOptions(config.learning_rate)
                    .betas({config.optimizer.beta1, config.optimizer.beta2})
                    .eps(config.optimizer.eps)
                    .weight_decay(config.weight_decay));
  }
  // Returns loss and norm.
  std::pair<double, double> step(const StepData& data, int64_t number) {
    const Timesteps timesteps({}, toy.config.timesteps);
    Objective objective(*toy.model, toy.model->stages().denoisers, runner, timesteps,
                        toy.config.seed);
    optimizer->zero_grad();
    double loss = 0;
    for (const auto& batch : data.batches) {
      const at::Tensor part =
          objective.flow_matching(batch, number) / static_cast<double>(data.plan.samples);
      part.backward();
      loss += part.item<double>();
    }
    const double norm = torch::nn::utils::clip_grad_norm_(leaves, toy.config.max_grad_norm);
    optimizer->step();
    return {loss, norm};
  }
};

TEST_CASE("A step is that of LibTorch's AdamW on the mean loss, clipped", "[step]") {
  TrainToy toy;
  toy.open();
  toy.config.max_grad_norm = 0.5;
  toy.config.weight_decay = 0.1;
  Reference reference(toy.config);
  StepBench bench(toy);
  for (int64_t i = 0; i < 4; ++i) {
    const StepData data = toy_step(3, 2, 100 + static_cast<int>(i) * 10);
    const StepResult result = bench.step.run(data, i);
    const auto [loss, norm] = reference.step(data, i);
    CHECK(result.step == i + 1);
    CHECK(result.lr == toy.config.learning_rate);
    CHECK(result.loss.item<double>() == Approx(loss).epsilon(1e-5));
    CHECK(result.norm.item<double>() == Approx(norm).epsilon(1e-4));
    CHECK(norm > toy.config.max_grad_norm);  // it was clipped
    CHECK(result.is_skipped.item<float>() == 0);
  }
  const NamedTensors values = bench.values();
  REQUIRE(values.size() == reference.names.size());
  for (size_t i = 0; i < reference.names.size(); ++i) {
    INFO(reference.names[i]);
    CHECK(at::allclose(values.at(reference.names[i]), reference.leaves[i].detach(), 1e-4, 1e-5));
  }
}

TEST_CASE("A window of small batches gives the step of one large batch", "[step]") {
  std::vector<NamedTensors> values;
  for (const int batch_size : {4, 2, 1}) {
    TrainToy toy;
    toy.open();
    StepBench bench(toy);
    bench.step.run(toy_step(4, batch_size), 0);
    values.push_back(bench.values());
  }
  for (const auto& [name, value] : values[0]) {
    for (size_t i = 1; i < values.size(); ++i)
      CHECK(at::allclose(values[i].at(name), value, 1e-3, 1e-5));
  }
}

TEST_CASE("Nothing of a step stays in the next one's gradients", "[step]") {
  TrainToy toy;
  toy.open();
  StepBench bench(toy);
  bench.step.run(toy_step(2, 1), 0);
  for (const optim::Group& group : bench.trained.groups()) {
    for (const optim::Parameter& parameter : group.parameters)
      CHECK_FALSE(parameter.leaf.grad().defined());
  }
}

TEST_CASE("A step with a loss that is not finite moves nothing, wherever parameters live",
          "[step]") {
  for (const char* device : {"cpu", "simulated"}) {
    TrainToy toy;
    toy.config.offload.optimizer = true;
    toy.open(device);
    StepBench bench(toy);
    bench.step.run(toy_step(2, 1), 0);
    const NamedTensors before = bench.values(), state = bench.optimizer->state();
    NamedTensors moments;
    for (const auto& [name, value] : state) moments.emplace(name, value.clone());
    StepData bad = toy_step(2, 1);
    bad.batches[1][0].sample.cond["latents"].flatten()[3] = NAN;
    const StepResult result = bench.step.run(bad, 1);
    CHECK(result.is_skipped.item<float>() == 1);
    CHECK_FALSE(result.has_moved);
    CHECK(test::same(bench.values(), before));
    CHECK(test::same(bench.optimizer->state(), moments));
    CHECK(bench.step.run(toy_step(2, 1), 2).is_skipped.item<float>() == 0);
    CHECK_FALSE(test::same(bench.values(), before));
  }
}

TEST_CASE("A step that was given up leaves nothing behind", "[step]") {
  for (const char* device : {"cpu", "simulated"}) {
    TrainToy toy;
    toy.config.offload.optimizer = true;
    toy.open(device);
    StepBench bench(toy);
    const NamedTensors before = bench.values();
    {
      int calls = 0;
      const test::HookScope fails([&](const at::Tensor& velocity) {
        if (++calls == 2) throw Error(ErrorCode::kOutOfMemory, "no room");
        return velocity;
      });
      test::expect_error(ErrorCode::kOutOfMemory, {"no room"},
                         [&] { bench.step.run(toy_step(2, 1), 0); });
    }
    CHECK_FALSE(bench.step.give_up());
    CHECK(test::same(bench.values(), before));
    const StepResult again = bench.step.run(toy_step(2, 1), 0);
    CHECK(again.is_skipped.item<float>() == 0);
  }
}

TEST_CASE("Parameters that moved before a step failed are told", "[step]") {
  TrainToy toy;
  toy.config.offload.optimizer = true;
  toy.config.max_grad_norm = 0;  // parameters move while the backward pass goes on
  toy.open("simulated");
  StepBench bench(toy);
  const StepResult result = bench.step.run(toy_step(1, 1), 0);
  CHECK(result.has_moved);
  CHECK_FALSE(bench.step.give_up());  // that step came to its end
}

TEST_CASE("A loss that nothing trained goes into is refused", "[step]") {
  TrainToy toy;
  toy.config.trainable_models = {"vae"};
  toy.open();
  toy.model->load_component("vae");
  StepBench bench(toy);
  test::expect_error(ErrorCode::kInvalidArgument, {"does not depend on anything that is trained"},
                     [&] { bench.step.run(toy_step(1, 1), 0); });
}

TEST_CASE("The learning rate follows its schedule", "[step]") {
  TrainToy toy;
  toy.config.lr_schedule.kind = "linear";
  toy.config.lr_schedule.warmup_steps = 2;
  toy.open();
  StepBench bench(toy, /*total_steps=*/4);
  std::vector<double> rates;
  for (int64_t i = 0; i < 4; ++i) rates.push_back(bench.step.run(toy_step(1, 1), i).lr);
  const std::vector<double> expected = {0, 0.005, 0.01, 0.005};
  for (size_t i = 0; i < 4; ++i) CHECK(rates[i] == Approx(expected[i]));
}

}  // namespace
}  // namespace atelier::train
