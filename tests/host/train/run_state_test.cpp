#include "host/train/run_state.h"

#include "run_workshop.h"

namespace atelier::train {
namespace {

using samples::Timesteps;

namespace fs = std::filesystem;

// A run's state, and steps that change it.
struct RunStateBench : test::RunToy {
  std::unique_ptr<run::RunFolder> run_folder;
  std::unique_ptr<RunState> state;
  std::unique_ptr<StepMemory> memory;
  std::unique_ptr<Timesteps> timesteps;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<TrainStep> step;

  RunStateBench() {
    config.ema_decay = 0.9;
    config.effective_toml = "seed = 42\n";
  }
  // From the weights in the files.
  void begin() {
    step.reset(), objective.reset(), memory.reset(), state.reset(), run_folder.reset();
    open();
    run_folder = std::make_unique<run::RunFolder>(config.output.output_path);
    state = std::make_unique<RunState>(parts(*run_folder), selection());
    memory = std::make_unique<StepMemory>(*model, config, parameters::unplanned_layout(config),
                                          state->trained(), progress, nullptr);
    timesteps = std::make_unique<Timesteps>(ScheduleDefaults{}, config.timesteps);
    objective = std::make_unique<Objective>(*model, model->stages().denoisers, memory->runner(),
                                            *timesteps, config.seed);
    step = std::make_unique<TrainStep>(config, state->trained(), state->optimizer(), *objective,
                                       *memory, /*total_steps=*/10, nullptr);
  }
  void make_step() {
    const int64_t number = state->counters().step++;
    step->run(test::toy_step(2, 1, 100 + 10 * static_cast<int>(number)), number);
    state->update_average();
  }
  run::SavedState newest() const {
    return run::find_state(config.output.output_path, [](const std::string&) {});
  }
  std::string file(const std::string& name) const { return config.output.output_path + "/" + name; }
  NamedTensors trained() const { return copies(state->trained().values()); }
  static NamedTensors copies(const NamedTensors& tensors) {
    NamedTensors out;
    for (const auto& [name, value] : tensors) out.emplace(name, value.clone());
    return out;
  }
  // What it is looked at and saved as.
  NamedTensors shown() const {
    NamedTensors values;
    state->with_average([&] { values = trained(); });
    return values;
  }
};

TEST_CASE("A state that is saved and restored has every bit, and so has the step after it",
          "[run_state]") {
  for (const bool is_lora : {false, true}) {
    RunStateBench bench;
    if (is_lora) bench.train_lora();
    bench.begin();
    bench.make_step();
    bench.make_step();
    bench.state->counters().epoch = 3;
    bench.state->counters().skipped = 2;
    bench.state->counters().skipped_in_row = 1;
    bench.state->save("step-2");
    const NamedTensors values = bench.trained(), shown = bench.shown(),
                       moments = RunStateBench::copies(bench.state->optimizer().state());
    CHECK_FALSE(test::same(values, shown));
    bench.make_step();
    const NamedTensors next = bench.trained();

    bench.begin();
    CHECK_FALSE(test::same(bench.trained(), values));
    bench.state->resume(bench.newest());
    CHECK(test::same(bench.trained(), values));
    CHECK(test::same(bench.shown(), shown));
    CHECK(test::same(bench.state->optimizer().state(), moments));
    const RunCounters& counters = bench.state->counters();
    CHECK(counters.step == 2);
    CHECK(counters.epoch == 3);
    CHECK(counters.skipped == 2);
    CHECK(counters.skipped_in_row == 1);
    CHECK(bench.state->weights_to_write().empty());
    CHECK_THAT(bench.said(), !Catch::Contains("differs from") && !Catch::Contains("another run"));
    bench.make_step();
    CHECK(test::same(bench.trained(), next));
  }
}

TEST_CASE("Averages stand in while they are looked at, whatever happens then", "[run_state]") {
  RunStateBench bench;
  bench.begin();
  bench.make_step();
  const NamedTensors values = bench.trained();
  NamedTensors inside;
  test::expect_error(ErrorCode::kInternal, {"boom"}, [&] {
    bench.state->with_average([&] {
      inside = bench.trained();
      throw Error(ErrorCode::kInternal, "boom");
    });
  });
  CHECK_FALSE(test::same(inside, values));
  CHECK(test::same(bench.trained(), values));
  bench.config.ema_decay = 0.0;
  bench.begin();
  CHECK(test::same(bench.shown(), bench.trained()));
}

TEST_CASE("The weights that are saved are the averages", "[run_state]") {
  RunStateBench bench;
  bench.begin();
  bench.make_step();
  bench.state->save("step-1");
  const auto saved = files::Checkpoint::open("w", {bench.file("step-1.safetensors")});
  const NamedTensors shown = bench.shown();
  CHECK(at::equal(saved.read("embed.weight"), shown.at("dit.embed.weight")));
}

TEST_CASE("A step is saved once, and nothing before the first", "[run_state]") {
  RunStateBench bench;
  bench.begin();
  bench.state->save("step-0");
  CHECK_FALSE(fs::exists(bench.file("step-0.safetensors")));
  bench.make_step();
  bench.state->save("step-1");
  REQUIRE(fs::exists(bench.file("step-1.safetensors")));
  bench.state->save("another", /*is_last=*/true);
  CHECK_FALSE(fs::exists(bench.file("another.safetensors")));
  CHECK(bench.newest().facts.at("weights") == "step-1");
  bench.config.output.save_state = false;
  bench.begin();
  bench.make_step();
  bench.state->counters().step = 5;
  bench.state->save("step-5");
  CHECK(fs::exists(bench.file("step-5.safetensors")));
  CHECK(bench.newest().step == 1);
}

TEST_CASE("A save that fails on the way is told and tried again, the last one is an error",
          "[run_state]") {
  RunStateBench bench;
  bench.begin();
  bench.make_step();
  test::FullDisk disk;
  const files::ReplacedFileOperations replaced(disk);
  bench.state->save("step-1");
  CHECK_THAT(bench.said(), Catch::Contains("not saved: "));
  CHECK_FALSE(fs::exists(bench.file("step-1.safetensors")));
  test::expect_error(ErrorCode::kEnvironment, {"No space left"},
                     [&] { bench.state->save("step-1", /*is_last=*/true); });
  disk.is_full = false;
  bench.state->save("step-1", /*is_last=*/true);
  CHECK(fs::exists(bench.file("step-1.safetensors")));
  CHECK(bench.newest().step == 1);
}

TEST_CASE("What has changed since a state was saved is told where the run may go on",
          "[run_state]") {
  RunStateBench bench;
  bench.begin();
  bench.make_step();
  bench.state->save("step-1");
  bench.config.order.batch_size = 2;
  bench.begin();
  bench.state->resume(bench.newest());
  CHECK_THAT(bench.said(), Catch::Contains("batch size") && !Catch::Contains("the dataset or the"));
  const std::string stem = bench.file("step-1");
  CHECK(find_weights_to_write(bench.newest(), bench.selection(), bench.config).empty());
  fs::remove(stem + ".safetensors");
  CHECK(find_weights_to_write(bench.newest(), bench.selection(), bench.config) == "step-1");
}

}  // namespace
}  // namespace atelier::train
