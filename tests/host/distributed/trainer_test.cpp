// What two ranks of a run agree on. Each case is run by itself in two processes, which
// trainer_test.py starts.
#include <csignal>
#include <filesystem>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/stop.h"

#include "host/distributed/group.h"
#include "host/distributed/sequence.h"
#include "run_workshop.h"

namespace atelier::train {
namespace {

using samples::Samples;

namespace fs = std::filesystem;
using distributed::Group;
using test::at_forward, test::HookScope, test::run_out_of_memory, test::RunWorkshop;

// A run of which rank 1 has one batch of the first step of an epoch, and none of the second one.
struct Ranks : RunWorkshop {
  std::shared_ptr<Group> group;
  std::shared_ptr<SequenceGroup> sequence;  // null: ranks have batches of their own

  // `exchange`: how long one may take.
  explicit Ranks(std::chrono::seconds exchange = std::chrono::seconds(30))
      : group(Group::meet(distributed::find_ranks(distributed::process_environment()),
                          {.exchange = exchange})) {
    REQUIRE(group->size() == 2);
  }

  bool is_first() const { return group->is_first(); }

  int train_together(const std::string& name) {
    return train(name, {}, group.get(), sequence.get());
  }
  // Both ranks compute each batch; in the middle of it they exchange, as blocks do.
  void compute_together() {
    sequence = distributed::make_sequence(*group, 2);
    config.sequence_parallel = 2;
  }

  // Rank 0 trains the same alone: with a batch for each rank, sums have one order.
  void check_alone_gives(const std::string& name) {
    if (!is_first()) return;
    CHECK(train("alone") == 0);
    CHECK(newest("alone").step == newest(name).step);
    CHECK(test::same(state_of("alone"), state_of(name)));
  }
};

// Acts on rank 1, and nothing on rank 0.
test::VelocityHook on_rank_1(const Ranks& ranks, int number, std::function<void()> action) {
  return ranks.is_first() ? test::VelocityHook() : at_forward(number, std::move(action));
}

// Calls `action` in forward pass number `number` of a training step, and before the ranks exchange.
test::VelocityHook at_shared_forward(const Ranks& ranks, int number, std::function<void()> action) {
  return
      [&ranks, hook = at_forward(number, std::move(action))](const at::Tensor& velocity) mutable {
        if (!at::GradMode::is_enabled()) return velocity;
        at::Tensor same = hook(velocity);
        ranks.sequence->gather(at::ones({4}));
        return same;
      };
}

TEST_CASE("Two ranks give the bits of one process", "[same]") {
  Ranks ranks;
  CHECK(ranks.train_together("run") == 0);
  ranks.group->part();
  ranks.check_alone_gives("run");
}

void check_stage(int stage) {
  Ranks ranks;
  ranks.config.shards.stage = stage;
  ranks.config.max_grad_norm = 0;  // whose sum is rounded otherwise
  CHECK(ranks.train_together("run") == 0);
  ranks.group->part();
  if (!ranks.is_first()) return;
  CHECK(ranks.train("alone") == 0);
  const auto weights = [&](const std::string& name) {
    return ranks.newest(name).load("trained.safetensors");
  };
  CHECK(test::same(weights("run"), weights("alone")));
  for (const char* file : {"step-2.safetensors", "step-6.safetensors"})  // averages
    CHECK(test::read_bytes(ranks.folder / ("run/" + std::string(file))) ==
          test::read_bytes(ranks.folder / ("alone/" + std::string(file))));
}

TEST_CASE("Two ranks that share out the optimizer give the bits of one process", "[stage1]") {
  check_stage(1);
}

TEST_CASE("Two ranks that share out gradients give the bits of one process", "[stage2]") {
  check_stage(2);
}

TEST_CASE("Who holds what is told with gradients that are shared out", "[told]") {
  Ranks ranks;
  ranks.config.shards.stage = 2;
  ranks.config.order.gradient_accumulation_steps = 4;  // one step an epoch, of which rank 0 has two
  {
    const HookScope fails(ranks.is_first() ? at_forward(2, run_out_of_memory)
                                           : test::VelocityHook());
    CHECK(ranks.train_together("run") == 0);
  }
  ranks.group->part();
  if (!ranks.is_first()) return;
  CHECK_THAT(ranks.said(), Catch::Contains("memory: weights of dit: ") &&
                               Catch::Contains("memory: gradients: ") &&
                               !Catch::Contains("memory: LoRA layers"));
}

TEST_CASE("A step of shared parameters that does not fit on one rank is made again", "[again]") {
  Ranks ranks;
  ranks.config.shards.stage = 2;
  ranks.config.max_grad_norm = 0;
  {
    const HookScope fails(on_rank_1(ranks, 2, run_out_of_memory));
    CHECK(ranks.train_together("run") == 0);
  }
  ranks.group->part();
  if (!ranks.is_first()) return;
  CHECK(ranks.train("alone") == 0);
  CHECK(test::same(ranks.newest("run").load("trained.safetensors"),
                   ranks.newest("alone").load("trained.safetensors")));
}

TEST_CASE("A step that does not fit on one rank is made again by both", "[repeated]") {
  Ranks ranks;
  {
    const HookScope fails(on_rank_1(ranks, 2, run_out_of_memory));
    CHECK(ranks.train_together("run") == 0);
  }
  ranks.group->part();
  const bool has_told = ranks.said().find("it is made again with") != std::string::npos;
  CHECK(has_told != ranks.is_first());
  ranks.check_alone_gives("run");
}

TEST_CASE("Where one rank can keep nothing less, the last step is saved", "[no_memory]") {
  Ranks ranks;
  ranks.config.use_gradient_checkpointing = true;
  const HookScope fails(on_rank_1(ranks, 2, run_out_of_memory));  // in the third step
  test::expect_error(ErrorCode::kOutOfMemory,
                     {ranks.is_first() ? "step 3: another rank has too little memory"
                                       : "step 3: toy.denoise: no room"},
                     [&] { ranks.train_together("run"); });
  ranks.group->part();
  if (!ranks.is_first()) return;
  CHECK(ranks.newest("run").step == 2);
  CHECK(fs::exists(ranks.folder / "run/step-2.safetensors"));
}

// Rank 1 has no room in the third step, while rank 0 waits for what it has of a batch.
void fail_together(Ranks& ranks) {
  ranks.config.output.save_steps = 100;
  ranks.compute_together();
  const HookScope fails(at_shared_forward(ranks, 4, [&] {
    if (!ranks.is_first()) run_out_of_memory();
  }));
  test::expect_error(ErrorCode::kOutOfMemory,
                     {ranks.is_first() ? "step 3: another rank has too little memory"
                                       : "step 3: toy.denoise: no room"},
                     [&] { ranks.train_together("run"); });
  ranks.group->part();
}

TEST_CASE("Where a step that ranks compute together does not fit on one, the last one is saved",
          "[together]") {
  Ranks ranks;
  fail_together(ranks);
  if (!ranks.is_first()) return;
  CHECK(ranks.newest("run").step == 2);
  CHECK(fs::exists(ranks.folder / "run/step-2.safetensors"));
  ranks.config.num_epochs = 1;
  ranks.config.sequence_parallel = 1;
  CHECK(ranks.train("alone") == 0);
  CHECK(ranks.newest("alone").step == 2);
  CHECK(test::same(ranks.state_of("alone"), ranks.state_of("run")));
}

TEST_CASE("Weights that several ranks have parts of are written when the run goes on",
          "[together_shared]") {
  Ranks ranks;
  ranks.config.shards.stage = 2;
  ranks.config.output.save_state = false;  // but then nothing would be left
  fail_together(ranks);
  CHECK_THAT(ranks.said(), Catch::Contains("the weights of step-2 are not written"));
  if (!ranks.is_first()) return;
  CHECK(ranks.newest("run").step == 2);
  CHECK_FALSE(fs::exists(ranks.folder / "run/step-2.safetensors"));
  ranks.config.shards.stage = 0;
  ranks.config.sequence_parallel = 1;
  ranks.config.resume = ranks.folder / "run";
  CHECK(ranks.train("run", ranks.newest("run")) == 0);
  CHECK(fs::exists(ranks.folder / "run/step-2.safetensors"));
  CHECK(fs::exists(ranks.folder / "run/step-6.safetensors"));
}

// Beside the others, one image that is twice as large.
struct RanksWithSizes : Ranks {
  explicit RanksWithSizes(int width = 32, const std::string& prompt = "number 3") {
    test::write_toy_image(folder / "data/3.png", width, 16, 3);
    test::write_bytes(folder / "data/metadata.csv",
                      test::read_bytes(folder / "data/metadata.csv") + "3.png," + prompt + "\n");
    samples = std::make_unique<Samples>(Samples::of_dataset(
        test::open_toy_dataset(config.dataset), *model,
        samples::cached_stages(test::image_toy(), test::image_toy().encode_stages(), {}),
        folder / "cache", false));
    REQUIRE(samples->fill(*model, 0, progress, [] { return false; }));
  }
};

TEST_CASE("The largest batch is tried before the first step, and all keep as little as is needed",
          "[tried]") {
  RanksWithSizes ranks;
  {
    const HookScope fails(on_rank_1(ranks, 1, run_out_of_memory));
    CHECK(ranks.train_together("run") == 0);
  }
  ranks.group->part();
  CHECK_THAT(ranks.said(),
             Catch::Contains(ranks.is_first()
                                 ? "another rank has less memory: only products and attention kept"
                                 : "the largest batch, before step 1: toy.denoise: no room; it is "
                                   "made again with only products and attention kept"));
  ranks.check_alone_gives("run");
}

TEST_CASE("Of images of one size, the one with the longest text is tried", "[tried_text]") {
  RanksWithSizes ranks(16, "the number that comes behind the second one");
  {
    const HookScope fails(on_rank_1(ranks, 1, run_out_of_memory));
    CHECK(ranks.train_together("run") == 0);
  }
  ranks.group->part();
  if (!ranks.is_first())
    CHECK_THAT(ranks.said(), Catch::Contains("the largest batch, before step 1: toy.denoise"));
  ranks.check_alone_gives("run");
}

TEST_CASE("Where the largest batch does not fit, no step is made", "[too_large]") {
  RanksWithSizes ranks;
  ranks.config.use_gradient_checkpointing = true;
  const HookScope fails(on_rank_1(ranks, 1, run_out_of_memory));
  test::expect_error(
      ErrorCode::kOutOfMemory,
      {ranks.is_first() ? "the largest batch, before step 1: another rank has too little memory"
                        : "the largest batch, before step 1: toy.denoise: no room"},
      [&] { ranks.train_together("run"); });
  ranks.group->part();
  if (ranks.is_first()) CHECK_FALSE(fs::exists(ranks.folder / "run/step-1.safetensors"));
}

TEST_CASE("A signal to one rank ends both after the same step", "[signal]") {
  Ranks ranks;
  const test::SignalScope signals;
  const HookScope hook(on_rank_1(ranks, 2, [] { std::raise(SIGTERM); }));
  CHECK(ranks.train_together("run") == 75);
  ranks.group->part();
  if (ranks.is_first()) CHECK(ranks.newest("run").step == 3);
}

TEST_CASE("A step that a signal to one rank gives up is given up by both", "[given_up]") {
  Ranks ranks;
  const test::SignalScope signals;
  const HookScope hook(on_rank_1(ranks, 2, [&] {
    std::raise(SIGINT);
    ops::check_stop();
    ranks.seconds += 11;
    ops::check_stop();
    FAIL("it takes too long");
  }));
  CHECK(ranks.train_together("run") == 130);
  ranks.group->part();
  if (ranks.is_first()) CHECK(ranks.newest("run").step == 2);
}

TEST_CASE("A checkpoint that one rank is asked for is saved", "[asked]") {
  Ranks ranks;
  const test::SignalScope signals;
  ranks.config.output.save_steps = 100;
  const HookScope hook(on_rank_1(ranks, 2, [] { std::raise(SIGUSR2); }));
  CHECK(ranks.train_together("run") == 0);
  ranks.group->part();
  if (ranks.is_first()) CHECK(fs::exists(ranks.folder / "run/checkpoints/step-00000003"));
}

TEST_CASE("The error of one rank ends the other one, which names it", "[error]") {
  Ranks ranks;
  if (!ranks.is_first()) {
    const HookScope fails(
        at_forward(1, [] { throw Error(ErrorCode::kDataLoss, "a sample of its own is damaged"); }));
    try {
      ranks.train_together("run");
      FAIL("its sample is damaged");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kDataLoss);
      ranks.group->give_up(error.message());
    }
    return;
  }
  test::expect_error(ErrorCode::kPeerLost, {"rank 1", "failed", "a sample of its own is damaged"},
                     [&] { ranks.train_together("run"); });
}

TEST_CASE("A checkpoint that cannot be written is left out, and the run goes on", "[full]") {
  Ranks ranks;
  const fs::path checkpoints = fs::path(ranks.folder / "run") / "checkpoints";
  {
    if (ranks.is_first()) test::write_bytes(checkpoints, "no folder");
    const HookScope hook(ranks.is_first() ? at_forward(4, [&] { fs::remove(checkpoints); })
                                          : test::VelocityHook());
    CHECK(ranks.train_together("run") == 0);
  }
  ranks.group->part();
  if (!ranks.is_first()) return;
  CHECK_THAT(ranks.said(), Catch::Contains("not saved"));
  CHECK(ranks.newest("run").step == 6);
  CHECK_FALSE(fs::exists(checkpoints / "step-00000002"));
  ranks.check_alone_gives("run");
}

TEST_CASE("A checkpoint of which one rank cannot write its part is left out by all",
          "[part_full]") {
  Ranks ranks;
  ranks.config.shards.stage = 2;
  test::FullDisk disk;
  {
    std::optional<files::ReplacedFileOperations> replaced;
    if (!ranks.is_first()) replaced.emplace(disk);
    const HookScope hook(on_rank_1(ranks, 2, [&] { disk.is_full = false; }));
    CHECK(ranks.train_together("run") == 0);
  }
  ranks.group->part();
  if (!ranks.is_first()) return;
  CHECK_THAT(ranks.said(),
             Catch::Contains("not saved: rank 1") && Catch::Contains("No space left on device"));
  CHECK(ranks.newest("run").step == 6);
  const fs::path checkpoints = fs::path(ranks.folder / "run") / "checkpoints";
  CHECK_FALSE(fs::exists(checkpoints / "step-00000002"));
  CHECK(fs::exists(checkpoints / "step-00000004/optimizer-00002-of-00002.safetensors"));
  CHECK(std::distance(fs::directory_iterator(checkpoints), fs::directory_iterator()) == 2);
}

TEST_CASE("A rank that validates longer than an exchange may take is waited for", "[late]") {
  Ranks ranks(std::chrono::seconds(3));
  const HookScope slow([&, is_late = !ranks.is_first()](const at::Tensor& velocity) mutable {
    if (!at::GradMode::is_enabled() && std::exchange(is_late, false))
      std::this_thread::sleep_for(std::chrono::seconds(5));
    return velocity;
  });
  CHECK(ranks.train_together("run") == 0);
  ranks.group->part();
}

TEST_CASE("Where a validation does not fit on one rank, the last step is saved", "[validation]") {
  Ranks ranks;
  ranks.config.output.save_steps = 100;
  ranks.config.validation.steps = 3;
  ranks.config.validation.timesteps = 1;
  const HookScope fails([&, steps = 0](const at::Tensor& velocity) mutable {
    if (at::GradMode::is_enabled())
      ++steps;
    else if (steps > 0 && !ranks.is_first())
      run_out_of_memory();
    return velocity;
  });
  test::expect_error(ErrorCode::kOutOfMemory,
                     {ranks.is_first() ? "the validation after step 3: another rank has too little"
                                       : "the validation after step 3: toy.denoise: no room"},
                     [&] { ranks.train_together("run"); });
  ranks.group->part();
  if (!ranks.is_first()) return;
  CHECK(ranks.newest("run").step == 3);
  CHECK(fs::exists(ranks.folder / "run/step-3.safetensors"));
}

TEST_CASE("A checkpoint that one rank passes over is passed over by both", "[passed_over]") {
  Ranks ranks;
  ranks.config.num_epochs = 2;
  CHECK(ranks.train_together("run") == 0);
  const std::string run_folder = ranks.group->gather_texts(ranks.folder / "run").front();
  ranks.open();
  ranks.config.output.output_path = ranks.folder / "again";
  Trainer trainer(
      {*ranks.model, ranks.config, parameters::unplanned_layout(ranks.config), *ranks.samples,
       nullptr, nullptr, nullptr, ranks.progress, nullptr, ranks.group.get()},
      ranks.selection());
  const run::SavedState resumed = run::find_state(
      run_folder, [](const std::string&) {},
      [&](const run::SavedState& state) {
        if (state.step == 4 && !ranks.is_first())
          throw Error(ErrorCode::kEnvironment, "it cannot be read here now");
        trainer.resume(state);
      });
  CHECK(resumed.step == 2);
  ranks.group->part();
}

TEST_CASE("Metrics are those of both ranks, wherever one waits for the other", "[metrics]") {
  Ranks ranks;
  ranks.config.log.csv = true;
  ranks.compute_together();
  constexpr double kLate = 0.2;  // seconds, in each of the nine forward passes
  const HookScope slow([&](const at::Tensor& velocity) {
    if (!at::GradMode::is_enabled()) return velocity;
    if (!ranks.is_first()) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
    ranks.sequence->gather(at::ones({4}));
    return velocity;
  });
  CHECK(ranks.train_together("run") == 0);
  ranks.group->part();
  if (!ranks.is_first()) return;
  std::map<std::string, double> last;
  std::istringstream lines(test::read_bytes(ranks.folder / "run/loss.csv"));
  for (std::string step, name, value; std::getline(lines, step, ',') &&
                                      std::getline(lines, name, ',') && std::getline(lines, value);)
    if (step == "6") last[name] = std::stod(value);
  CHECK(last.at("perf/slowest_rank") == 1);
  const double elapsed = last.at("perf/seconds_per_step") * 6;
  CHECK(last.at("perf/peers_wait_share") * elapsed >
        9 * kLate / 2 / 2);  // half of what rank 0 waits
}

}  // namespace
}  // namespace atelier::train
