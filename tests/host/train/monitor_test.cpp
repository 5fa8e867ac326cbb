#include "host/train/monitor.h"

#include <csignal>
#include <sstream>

#include <ATen/core/grad_mode.h>

#include "host/random/counter.h"
#include "run_toy.h"

namespace atelier::train {
namespace {

using samples::Timesteps;

using test::HookScope;

struct MonitorBench : test::RunToy {
  std::unique_ptr<run::RunFolder> run_folder;
  std::unique_ptr<RunState> state;
  std::unique_ptr<StepMemory> memory;
  std::unique_ptr<Timesteps> timesteps;
  std::unique_ptr<Objective> objective;
  Agreement agreement{10};
  std::unique_ptr<Monitor> monitor;

  MonitorBench() {
    config.log.csv = true;
    config.validation.timesteps = 2;
  }
  void begin(Preview* preview = nullptr) {
    monitor.reset(), objective.reset(), memory.reset(), state.reset(), run_folder.reset();
    run_folder = std::make_unique<run::RunFolder>(config.output.output_path);
    const RunContext all = parts(*run_folder, preview);
    state = std::make_unique<RunState>(all, selection());
    memory = std::make_unique<StepMemory>(*model, config, parameters::unplanned_layout(config),
                                          state->trained(), progress, nullptr);
    timesteps = std::make_unique<Timesteps>(ScheduleDefaults{}, config.timesteps);
    objective = std::make_unique<Objective>(*model, model->stages().denoisers, model->runner(),
                                            *timesteps, config.seed);
    monitor = std::make_unique<Monitor>(all, *state, *objective, *timesteps, agreement, *memory);
  }
  static StepResult step(int64_t number, double loss, double norm = 0.5) {
    return {.step = number,
            .epoch = 1,
            .lr = 1e-2,
            .loss = at::tensor(loss),
            .norm = at::tensor(norm),
            .is_skipped = at::tensor(0.0)};
  }
  // The rows of one key in loss.csv: "2,1.5".
  std::vector<std::string> rows(const std::string& key) const {
    std::istringstream lines(test::read_bytes(config.output.output_path + "/loss.csv"));
    std::vector<std::string> found;
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("," + key + ",");
      if (at != std::string::npos)
        found.push_back(line.substr(0, at) + line.substr(at + key.size() + 1));
    }
    return found;
  }
};

using CsvRows = std::vector<std::string>;

TEST_CASE("Metrics are written at the steps that were asked for, and at the last", "[monitor]") {
  MonitorBench bench;
  bench.config.log.logging_steps = 2;
  bench.begin();
  bench.monitor->open();
  bench.monitor->begin();
  bench.state->counters().skipped = 3;
  for (int step = 1; step <= 5; ++step)
    bench.monitor->log(MonitorBench::step(step, step, /*norm=*/10.0 * step), /*is_last=*/step == 5);
  CHECK(bench.rows("train/loss") == CsvRows{"2,1.5", "4,3.5", "5,5"});  // the mean since the last
  CHECK(bench.rows("train/grad_norm") == CsvRows{"2,20", "4,40", "5,50"});
  CHECK(bench.rows("train/lr") == CsvRows{"2,0.01", "4,0.01", "5,0.01"});
  CHECK(bench.rows("train/skipped_steps") == CsvRows{"2,3", "4,3", "5,3"});
}

TEST_CASE("The line of progress has every step", "[monitor]") {
  MonitorBench bench;
  bench.config.log.logging_steps = 100;
  bench.begin();
  bench.monitor->open();
  bench.monitor->begin();
  bench.monitor->log(MonitorBench::step(1, 0.25), false);
  CHECK_THAT(bench.monitor->note(), Catch::StartsWith("loss 0.2500 lr 1.00e-02 norm 0.5 mem "));
  bench.monitor->log(MonitorBench::step(2, 0.125), false);
  CHECK_THAT(bench.monitor->note(), Catch::StartsWith("loss 0.1250 "));
  CHECK(bench.rows("train/loss").empty());
}

TEST_CASE("Time that went to something else is in no rate", "[monitor]") {
  MonitorBench bench;
  bench.begin();
  bench.monitor->open();
  bench.monitor->begin();
  bench.monitor->leave_out(-1000);  // as if the step had taken so long
  bench.monitor->wait_for_samples(250);
  bench.monitor->log(MonitorBench::step(1, 1.0), false);
  bench.monitor->leave_out(1000);
  bench.monitor->wait_for_samples(0);
  bench.monitor->log(MonitorBench::step(2, 1.0), false);
  const CsvRows rates = bench.rows("perf/seconds_per_step"),
                waits = bench.rows("perf/data_wait_share");
  REQUIRE(rates.size() == 2);
  CHECK(std::stod(rates[0].substr(2)) == Approx(1000).margin(10));
  CHECK(std::stod(rates[1].substr(2)) < 10);
  CHECK(std::stod(waits[0].substr(2)) == Approx(0.25).margin(0.01));
  CHECK_THAT(bench.monitor->note(), Catch::EndsWith("wait 0%"));
}

TEST_CASE("A run that is resumed cuts off the metrics of steps behind its own", "[monitor]") {
  MonitorBench bench;
  bench.begin();
  bench.monitor->open();
  bench.monitor->begin();
  for (int step = 1; step <= 4; ++step) bench.monitor->log(MonitorBench::step(step, step), false);
  bench.begin();
  bench.state->counters().step = 2;
  bench.monitor->open();
  CHECK(bench.rows("train/loss") == CsvRows{"1,1", "2,2"});
  bench.monitor->begin();
  bench.monitor->log(MonitorBench::step(3, 7), false);
  CHECK(bench.rows("train/loss") == CsvRows{"1,1", "2,2", "3,7"});
}

TEST_CASE("Validation is the mean loss of each level over the samples", "[monitor]") {
  MonitorBench bench;
  bench.begin();
  bench.monitor->open();
  bench.state->counters().step = 4;
  bench.monitor->validate();
  const auto grid = bench.timesteps->grid(2);
  const uint64_t seed = random::stream_seed(bench.config.seed, random::Stream::kValidation);
  const at::NoGradGuard no_grad;
  at::Tensor sums = at::zeros({2}, at::kDouble);
  for (uint32_t i = 0; i < 3; ++i)
    sums +=
        bench.objective->at_levels(bench.samples->load(i, false), grid, seed, i).to(at::kDouble);
  const CsvRows whole = bench.rows("validation/loss");
  REQUIRE(whole.size() == 1);
  CHECK(whole[0].starts_with("4,"));
  CHECK(std::stod(whole[0].substr(2)) == Approx(sums.mean().item<double>() / 3).epsilon(1e-5));
  for (size_t level = 0; level < grid.size(); ++level) {
    char key[40];
    std::snprintf(key, sizeof key, "validation/loss_sigma_%.3f",
                  static_cast<double>(grid[level].sigma));
    const CsvRows rows = bench.rows(key);
    REQUIRE(rows.size() == 1);
    CHECK(std::stod(rows[0].substr(2)) ==
          Approx(sums[static_cast<int64_t>(level)].item<double>() / 3).epsilon(1e-5));
  }
  CHECK_THAT(bench.said(), Catch::Contains("step-4: validation loss "));
}

TEST_CASE("Validation changes nothing of the run, and gives the same again", "[monitor]") {
  MonitorBench bench;
  bench.begin();
  bench.monitor->open();
  NamedTensors before;
  for (const auto& [name, value] : bench.state->trained().values())
    before.emplace(name, value.clone());
  at::manual_seed(5);
  const at::Tensor expected = at::rand({8});
  at::manual_seed(5);
  bench.monitor->validate();
  CHECK(at::equal(at::rand({8}), expected));
  bench.monitor->validate();
  CHECK(test::same(bench.state->trained().values(), before));
  for (const optim::Group& group : bench.state->trained().groups()) {
    for (const optim::Parameter& parameter : group.parameters)
      CHECK_FALSE(parameter.leaf.grad().defined());
  }
  const CsvRows rows = bench.rows("validation/loss");
  REQUIRE(rows.size() == 2);
  CHECK(rows[0] == rows[1]);
}

TEST_CASE("Validation looks at the averages where there are any", "[monitor]") {
  for (const bool has_average : {true, false}) {
    MonitorBench bench;
    if (has_average) bench.config.ema_decay = 0.9;
    bench.begin();
    bench.monitor->open();
    bench.monitor->validate();
    const at::NoGradGuard no_grad;
    for (const auto& [name, value] : bench.state->trained().values()) value.mul_(1.5);
    bench.monitor->validate();
    const CsvRows rows = bench.rows("validation/loss");
    REQUIRE(rows.size() == 2);
    CHECK((rows[0] == rows[1]) == has_average);
  }
}

TEST_CASE("A signal ends validation early, and half of it is not told", "[monitor]") {
  const test::SignalScope signals;
  MonitorBench bench;
  bench.begin();
  bench.monitor->open();
  int calls = 0;
  const HookScope hook([&](const at::Tensor& velocity) {
    if (++calls == 2) std::raise(SIGTERM);
    return velocity;
  });
  bench.monitor->validate();
  CHECK(calls == 2);
  CHECK(bench.rows("validation/loss").empty());
}

TEST_CASE("What goes wrong in validation without a signal is told", "[monitor]") {
  const test::SignalScope signals;
  MonitorBench bench;
  bench.begin();
  bench.monitor->open();
  const HookScope hook([](const at::Tensor&) -> at::Tensor {
    throw Error(ErrorCode::kCancelled, "the model gives up");
  });
  test::expect_error(ErrorCode::kCancelled, {"the model gives up"},
                     [&] { bench.monitor->validate(); });
}

TEST_CASE("A validation that does not fit has a way out", "[monitor]") {
  MonitorBench bench;
  bench.config.ema_decay = 0.5;
  bench.begin();
  bench.monitor->open();
  bench.state->counters().step = 3;
  const at::Tensor before = bench.state->trained().values().begin()->second.clone();
  const HookScope hook(
      [](const at::Tensor&) -> at::Tensor { throw Error(ErrorCode::kOutOfMemory, "no room"); });
  test::expect_error(ErrorCode::kOutOfMemory,
                     {"the validation after step 3: toy.denoise: no room", "--max_pixels"},
                     [&] { bench.monitor->validate(); });
  CHECK(at::equal(bench.state->trained().values().begin()->second, before));
  CHECK(bench.rows("validation/loss").empty());
}

TEST_CASE("Images are not worth a run, and what else goes wrong with them is", "[monitor]") {
  MonitorBench bench;
  order::Settings settings;
  settings.prompt = "a lighthouse";
  settings.num_frames = 1;
  settings.height = settings.width = 16;
  settings.num_inference_steps = 1;
  settings.cfg_scale = 1.0;
  test::write_bytes(bench.folder / "taken", "");
  Preview preview(*bench.model, {settings}, bench.folder / "taken", {"dit"}, bench.progress);
  bench.begin(&preview);
  bench.monitor->open();
  bench.monitor->preview();
  CHECK_THAT(bench.said(), Catch::Contains("no sample images: ") && Catch::Contains("taken"));
  test::fs::remove(bench.folder / "taken");
  {
    const HookScope hook(
        [](const at::Tensor&) -> at::Tensor { throw Error(ErrorCode::kOutOfMemory, "no room"); });
    bench.monitor->preview();
    CHECK_THAT(bench.said(), Catch::Contains("no sample images: toy.denoise: no room"));
  }
  const HookScope hook(
      [](const at::Tensor&) -> at::Tensor { throw Error(ErrorCode::kNumerics, "nonsense"); });
  test::expect_error(ErrorCode::kNumerics, {"nonsense"}, [&] { bench.monitor->preview(); });
}

}  // namespace
}  // namespace atelier::train
