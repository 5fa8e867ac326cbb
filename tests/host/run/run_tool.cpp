// Saves and looks up checkpoints, and writes metrics, for tests of other processes.
//
// usage: run_tool save FOLDER      saves steps and weights for ever; one line for each step that is
//                                  committed
//        run_tool open FOLDER      takes the folder as a run does, and leaves it
//        run_tool check FOLDER     prints the step of the newest checkpoint, compared in full
//        run_tool metrics FOLDER LAST_STEP
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/files/safetensors_writer.h"
#include "host/run/metrics.h"
#include "host/run/run_folder.h"

using namespace atelier;

namespace {

at::Tensor values_of(int64_t step) {
  return at::arange(300'000, at::kInt) + step;
}

run::SavedState find(const std::string& folder) {
  const auto warn = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  return run::find_state(folder, warn, [](const run::SavedState& saved_state) {
    const bool is_whole =
        at::equal(saved_state.load("weights.safetensors").at("w"), values_of(saved_state.step)) &&
        at::equal(saved_state.load("optimizer.safetensors").at("m"),
                  -values_of(saved_state.step)) &&
        saved_state.text("config.toml") == std::to_string(saved_state.step) &&
        saved_state.facts.at("step") == saved_state.step;
    if (!is_whole) throw Error(ErrorCode::kInternal, saved_state.folder + " is of another step");
  });
}

// Every third step is saved twice, as by a run that was resumed.
void save(const std::string& folder) {
  run::RunFolder out(folder);
  int64_t step = 1;
  try {
    step = find(folder).step + 1;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
  }
  for (;; ++step) {
    const run::SavedStateFiles files = {{{"weights.safetensors", {{"w", values_of(step)}}},
                                         {"optimizer.safetensors", {{"m", -values_of(step)}}}},
                                        {{"config.toml", std::to_string(step)}}};
    for (int i = 0; i < (step % 3 == 0 ? 2 : 1); ++i) out.save(step, files, {{"step", step}}, 2);
    files::write_safetensors(folder + "/step.safetensors", {{"w", values_of(step)}});
    std::printf("%lld\n", static_cast<long long>(step));
    std::fflush(stdout);
  }
}

void write_metrics(const std::string& folder, int64_t last_step) {
  const auto board = run::open_tensorboard(folder + "/logs");
  const auto csv = run::open_csv(folder + "/metrics.csv", last_step);
  for (int64_t step = last_step + 1; step <= last_step + 3; ++step) {
    const std::map<std::string, double> values = {
        {"train/loss", 1.0 / static_cast<double>(step)},
        {"odd,\"name\"", static_cast<double>(step)},
        {"lr", 1e-4},
        {"nan", std::numeric_limits<double>::quiet_NaN()}};
    board->write(step, values);
    csv->write(step, values);
  }
  board->write(int64_t{1} << 40, {{std::string(200, 'n'), -1e30}});
  const run::EncodedImage image = {"samples/0", "a fox", std::string("\x89PNG\0bytes", 10), 3, 5};
  board->write_image(last_step + 3, image);
  csv->write_image(last_step + 3, image);
}

}  // namespace

int main(int count, char** values) {
  try {
    if (count == 3 && std::strcmp(values[1], "save") == 0) {
      save(values[2]);
    } else if (count == 3 && std::strcmp(values[1], "open") == 0) {
      const run::RunFolder out(values[2]);
    } else if (count == 3 && std::strcmp(values[1], "check") == 0) {
      std::printf("%lld\n", static_cast<long long>(find(values[2]).step));
    } else if (count == 4 && std::strcmp(values[1], "metrics") == 0) {
      write_metrics(values[2], std::atoll(values[3]));
    } else {
      return 2;
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return exit_code(error.code());
  }
}
