#include "host/train/trainer.h"

#include <csignal>
#include <limits>

#include <ATen/core/grad_mode.h>

#include "atelier/host/stop.h"

#include "run_workshop.h"

namespace atelier::train {
namespace {

namespace fs = std::filesystem;
using test::at_forward, test::HookScope, test::run_out_of_memory, test::RunWorkshop;

TEST_CASE("A run that is resumed has the bits of one that was not interrupted", "[trainer]") {
  RunWorkshop shop;
  CHECK(count_steps(*shop.samples, shop.config) == 6);
  CHECK(shop.train("straight") == 0);
  CHECK(shop.newest("straight").step == 6);
  for (const int64_t cut : {2, 3, 5}) {
    const std::string name = "cut " + std::to_string(cut);
    shop.config.max_train_steps = cut;
    CHECK(shop.train(name) == 0);
    CHECK(shop.newest(name).step == cut);
    shop.config.max_train_steps.reset();
    CHECK(shop.resume(name) == 0);
    CHECK(test::same(shop.state_of(name), shop.state_of("straight")));
    CHECK(shop.newest(name).facts == shop.newest("straight").facts);
  }
}

TEST_CASE("Weights that a stopped run did not write are written when it goes on", "[trainer]") {
  RunWorkshop shop;
  shop.config.max_train_steps = 2;
  CHECK(shop.train("run") == 0);
  const std::string weights = shop.folder / "run/step-2.safetensors";
  const std::string bytes = test::read_bytes(weights);
  REQUIRE_FALSE(bytes.empty());
  CHECK(find_weights_to_write(shop.newest("run"), shop.selection(), shop.config).empty());
  fs::remove(weights);
  CHECK(find_weights_to_write(shop.newest("run"), shop.selection(), shop.config) == "step-2");
  CHECK(shop.resume("run") == 0);
  CHECK(test::read_bytes(weights) == bytes);
}

TEST_CASE("A step that does not fit is made again as a whole, to the same bits", "[trainer]") {
  RunWorkshop shop;
  CHECK(shop.train("plain") == 0);
  for (const int pass : {1, 2, 5}) {  // the first or second batch of a step, and one later on
    const std::string name = "tight " + std::to_string(pass);
    const HookScope fails(at_forward(pass, run_out_of_memory));
    CHECK(shop.train(name) == 0);
    CHECK(test::same(shop.state_of(name), shop.state_of("plain")));
  }
  CHECK_THAT(shop.said(), Catch::Contains("step 1: toy.denoise: no room; it is made again with") &&
                              Catch::Contains("memory: weights of dit"));
}

TEST_CASE("A run ends with its last step saved when nothing less can be kept", "[trainer]") {
  RunWorkshop shop;
  shop.config.use_gradient_checkpointing = true;
  const HookScope fails(at_forward(4, run_out_of_memory));  // the second step has one batch
  test::expect_error(ErrorCode::kOutOfMemory, {"step 3: toy.denoise: no room", "--optimize_on_cpu"},
                     [&] { shop.train("run"); });
  CHECK(shop.newest("run").step == 2);
  CHECK(fs::exists(shop.folder / "run/step-2.safetensors"));
}

TEST_CASE("A signal lets the step end that it came in, and the run goes on from there",
          "[trainer]") {
  RunWorkshop shop;
  CHECK(shop.train("straight") == 0);
  {
    const run::StopSignals signals;
    const HookScope hook(at_forward(4, [] { std::raise(SIGTERM); }));
    CHECK(shop.train("run") == 75);
  }
  CHECK(shop.newest("run").step == 3);
  CHECK(fs::exists(shop.folder / "run/step-3.safetensors"));
  const run::StopSignals signals;  // forgets the one that came
  CHECK(shop.resume("run") == 0);
  CHECK(test::same(shop.state_of("run"), shop.state_of("straight")));
}

TEST_CASE("A step that a signal ends is given up, and nothing of it is saved", "[trainer]") {
  RunWorkshop shop;
  CHECK(shop.train("straight") == 0);
  {
    const run::StopSignals signals;
    const HookScope hook(at_forward(5, [&] {
      std::raise(SIGINT);
      ops::check_stop();  // the step may end by itself
      shop.seconds += 11;
      ops::check_stop();
      FAIL("it takes too long");
    }));
    CHECK(shop.train("run") == 130);
  }
  CHECK(shop.newest("run").step == 2);
  const run::StopSignals signals;
  CHECK(shop.resume("run") == 0);
  CHECK(test::same(shop.state_of("run"), shop.state_of("straight")));
}

TEST_CASE("What ends a step without a decision to leave ends the run with an error", "[trainer]") {
  RunWorkshop shop;
  const HookScope hook(
      at_forward(5, [] { throw Error(ErrorCode::kCancelled, "the model gives up"); }));
  test::expect_error(ErrorCode::kCancelled, {"the model gives up"}, [&] { shop.train("run"); });
  CHECK(shop.newest("run").step == 2);
}

TEST_CASE("A checkpoint is saved when one is asked for", "[trainer]") {
  RunWorkshop shop;
  shop.config.output.save_steps = 100;
  const run::StopSignals signals;
  const HookScope hook(at_forward(3, [] { std::raise(SIGUSR2); }));
  CHECK(shop.train("run") == 0);
  CHECK(fs::exists(shop.folder / "run/checkpoints/step-00000002"));
  CHECK(fs::exists(shop.folder / "run/checkpoints/step-00000006"));
  CHECK_FALSE(fs::exists(shop.folder / "run/checkpoints/step-00000004"));
}

// The velocity of the forward passes from `first` to `last` is not finite.
test::VelocityHook not_finite(int first, int last) {
  return [=, calls = 0](const at::Tensor& velocity) mutable {
    if (!at::GradMode::is_enabled()) return velocity;
    const bool is_hit = ++calls >= first && calls <= last;
    return is_hit ? velocity * std::numeric_limits<float>::quiet_NaN() : velocity;
  };
}

TEST_CASE("Steps that are not finite are skipped and counted", "[trainer]") {
  RunWorkshop shop;
  shop.config.max_train_steps = 1;
  CHECK(shop.train("one") == 0);
  shop.config.max_train_steps = 2;
  const HookScope hook(not_finite(3, 3));
  CHECK(shop.train("two") == 0);
  CHECK(shop.newest("two").facts.at("skipped_steps") == 1);
  CHECK(shop.newest("two").facts.at("skipped_in_row") == 1);
  CHECK(test::same(shop.state_of("two"), shop.state_of("one")));
  CHECK_THAT(shop.said(), Catch::Contains("step 2: loss or gradients are not finite; the step "
                                          "changes nothing (1 so far)"));
}

TEST_CASE("Averages of what is on a device, or moved beside it, have the bits of the host's",
          "[trainer]") {
  RunWorkshop shop;
  const auto state_on = [&](const std::string& name, const std::string& device,
                            bool optimizes_on_host) {
    const HookScope hook(not_finite(5, 5));  // the third step is skipped
    shop.device = device;
    shop.config.offload.optimizer = optimizes_on_host;
    CHECK(shop.train(name) == 0);
    CHECK(shop.newest(name).facts.at("skipped_steps") == 1);
    return shop.state_of(name);
  };
  const NamedTensors expected = state_on("host", "cpu", false);
  // So slow that a step would overwrite what is on its way.
  const std::string slow = "simulated:1GiB:0.1GB/s";
  CHECK(test::same(state_on("device", slow, false), expected));
  CHECK(test::same(state_on("beside", slow, true), expected));
}

TEST_CASE("Too many steps in a row that are not finite end the run", "[trainer]") {
  RunWorkshop shop;
  shop.config.max_skipped_steps = 2;
  const HookScope hook(not_finite(4, 100));
  test::expect_error(ErrorCode::kNumerics, {"step 4: 2 steps in a row were not finite"},
                     [&] { shop.train("run"); });
  CHECK(shop.newest("run").step == 2);  // what was saved before is whole
}

TEST_CASE("Metrics have the loss of each step and of validation, and go on when resumed",
          "[trainer]") {
  RunWorkshop shop;
  shop.config.log.csv = true;
  shop.config.validation.steps = 2;
  shop.config.validation.timesteps = 2;
  CHECK(shop.train("straight") == 0);
  shop.config.max_train_steps = 3;
  CHECK(shop.train("cut") == 0);
  shop.config.max_train_steps.reset();
  CHECK(shop.resume("cut") == 0);
  std::map<std::string, std::set<std::string>> rows;
  for (const char* name : {"straight", "cut"}) {
    std::istringstream lines(test::read_bytes(shop.folder / name + "/loss.csv"));
    for (std::string line; std::getline(lines, line);) {
      const bool is_of_values = line.find(",train/") != std::string::npos ||
                                line.find(",validation/") != std::string::npos;
      // The shorter run also validated at its end.
      if (is_of_values && !line.starts_with("3,validation")) rows[name].insert(line);
    }
  }
  CHECK(rows["straight"] == rows["cut"]);
  const auto count = [&](const std::string& key) {
    return std::count_if(rows["straight"].begin(), rows["straight"].end(),
                         [&](const std::string& row) { return row.find(key) != row.npos; });
  };
  CHECK(count(",train/loss,") == 6);
  CHECK(count(",train/grad_norm,") == 6);
  CHECK(count(",validation/loss,") == 4);  // before the first step, and after 2, 4 and 6
  CHECK(count(",validation/loss_sigma_") == 8);
}

}  // namespace
}  // namespace atelier::train
