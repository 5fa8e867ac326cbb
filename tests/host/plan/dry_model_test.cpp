#include "host/plan/dry_model.h"

#include "host/train/objective.h"
#include "tests/host/lora/toy_lora.h"
#include "tests/support/device_calls.h"

namespace atelier::plan {
namespace {

nn::Linear* find_linear(model::LoadedModel& model, const std::string& path) {
  nn::Linear* found = nullptr;
  model.model().component("dit").visit([&](nn::Module& module) {
    if (module.path() == path) found = dynamic_cast<nn::Linear*>(&module);
  });
  return found;
}

}  // namespace

TEST_CASE("A dry model takes away the adapters that it put there, and no others", "[plan]") {
  const test::Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = test::open_toy(folder.path());
  nn::Linear* down = find_linear(*model, "blocks.1.down");
  REQUIRE(down != nullptr);
  const ops::Adapter other = {at::randn({3, 32}), at::randn({32, 3}), 0.5};
  down->adapters.push_back(other);
  {
    DryModel dry(*model, at::kCPU);
    dry.train({.layers = {{"dit", "blocks.1.down", down}}}, /*rank=*/4);
    REQUIRE(down->adapters.size() == 2);
    CHECK(down->adapters[1].a.is_meta());
  }
  REQUIRE(down->adapters.size() == 1);
  CHECK(down->adapters[0].a.is_same(other.a));
}

TEST_CASE("A training step sends its samples to the device, and nobody waits", "[plan]") {
  const test::Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = test::open_toy(folder.path());
  DryModel dry(*model, at::kCUDA);
  dry.train({.layers = {{"dit", "blocks.1.down", find_linear(*model, "blocks.1.down")}}}, 4);
  const samples::Timesteps timesteps({}, {});
  DirectRunner runner;
  train::Objective objective(*model, model->stages().denoisers, runner, timesteps, /*seed=*/1,
                             at::kMeta);
  std::vector<train::StepSample> batch(2);
  for (train::StepSample& placed : batch) {
    placed.sample.cond["prompt_embeds"] = at::randn({5, test::kToyWidth});
    placed.sample.cond["latents"] = at::randn({test::kToyChannels, 1, 4, 4});
    placed.sample.mask = at::ones({1, 1, 4, 4});
    objective.read_ahead(placed, 3, /*makes_noise=*/true);
  }
  const test::DeviceCalls calls;
  objective.flow_matching(batch, 3).backward();
  CHECK(calls.waits() == 0);
  // Text, latents, mask and noise of each sample, the noise levels and their weights.
  CHECK(calls.copies() == 2 * 4 + 2);
}

TEST_CASE("What goes wrong in a plugin's dry run names the family", "[plan]") {
  const test::Folder folder;
  test::write_two_part_model(folder.path());
  const auto model = test::open_toy(folder.path());
  DryModel dry(*model, at::kCPU);
  const auto fails = [](BlockRunner&) { throw std::runtime_error("boom"); };
  test::expect_error(ErrorCode::kInternal, {"toy in a dry run: boom"}, [&] { dry.measure(fails); });
  test::expect_error(ErrorCode::kInternal, {"toy in a dry run: boom"},
                     [&] { dry.measure_training(fails, *memory::known_profile("h200")); });
}

}  // namespace atelier::plan
