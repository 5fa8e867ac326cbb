// Times the search for a memory plan: two denoisers, a text encoder and a VAE, each in three
// storages, that all meet on the device; and a training with many activation budgets.
//
//   atelier-bench-planner [repetitions]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "memory/planner.h"

namespace {

using namespace atelier::memory;

constexpr int64_t kMiB = int64_t{1} << 20;

// Bytes of a block, in 16 bits.
PlannedComponent component(const char* name, size_t blocks, int64_t bytes) {
  PlannedComponent made{.name = name, .may_stream = true};
  for (const char* storage : {"plain", "fp8", "int8"}) {
    const int64_t stored = made.storages.empty() ? bytes : bytes * 51 / 100;
    made.storages.push_back({.storage = storage,
                             .blocks = std::vector<int64_t>(blocks, stored),
                             .once = std::vector<int64_t>(blocks, stored / 8),
                             .outside = 200 * kMiB});
  }
  return made;
}

// What is loaded stays for the next prompt, so that all components share the device. A block of a
// denoiser takes `block_seconds`, and about 0.027 to come.
PlannedRun generation(double block_seconds) {
  PlannedRun run;
  run.components = {component("text", 24, 450 * kMiB), component("high", 40, 680 * kMiB),
                    component("low", 40, 680 * kMiB), component("vae", 0, 0)};
  const auto add = [&](const char* name, std::vector<std::string> components, double seconds,
                       size_t blocks, double passes) {
    PlannedPhase phase{.name = name, .components = std::move(components), .passes = passes};
    for (const bool halves : {false, true}) {
      Strategy strategy{.device_bytes = (halves ? 3000 : 1800) * kMiB,
                        .repeats = halves ? 1.0 : 2.0};
      strategy.forward[phase.components.back()] =
          std::vector<double>(blocks, halves ? 1.9 * seconds : seconds);
      phase.strategies.push_back(std::move(strategy));
    }
    run.phases.push_back(std::move(phase));
  };
  add("encode", {"vae", "high", "low", "text"}, 0.004, 24, 2);
  add("denoise high", {"vae", "text", "low", "high"}, block_seconds, 40, 10);
  add("denoise low", {"vae", "text", "high", "low"}, block_seconds, 40, 30);
  add("decode", {"text", "high", "low", "vae"}, 0.0, 0, 1);
  return run;
}

PlannedRun training() {
  PlannedRun run;
  run.components = {component("dit", 60, 680 * kMiB), component("vae", 0, 0)};
  PlannedPhase phase{.name = "train", .components = {"dit"}, .passes = 1000};
  for (int i = 0; i <= 20; ++i) {
    Strategy strategy{.device_bytes = (28000 - 1200 * i) * kMiB};
    strategy.forward["dit"] = std::vector<double>(60, 0.01);
    strategy.backward["dit"] = std::vector<double>(60, 0.02 + 0.0005 * i);
    phase.strategies.push_back(std::move(strategy));
  }
  run.phases = {phase};
  return run;
}

void measure(const char* name, const PlannedRun& run, int repetitions) {
  const DeviceProfile profile = known_profile("4090").value();
  for (const int64_t gib : {6, 12, 16, 24, 48, 80}) {
    std::vector<double> seconds;
    std::optional<MemoryPlan> plan;
    for (int i = 0; i < repetitions; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      plan = plan_memory(run, {gib * 1024 * kMiB, 64 * 1024 * kMiB}, profile);
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    std::ranges::sort(seconds);
    std::printf("| %s | %2lld GiB | %.1f ms | %lld | %.3f s |\n", name, static_cast<long long>(gib),
                seconds[seconds.size() / 2] * 1e3,
                static_cast<long long>(plan ? plan->num_tried : 0), plan ? plan->seconds : 0.0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  std::printf("| run | limit | search, median | combinations tried | planned |\n");
  std::printf("| --- | --- | --- | --- | --- |\n");
  measure("two denoisers, text encoder, VAE: long passes", generation(0.050), repetitions);
  measure("two denoisers, text encoder, VAE: short passes", generation(0.008), repetitions);
  measure("training, 21 budgets", training(), repetitions);
  return 0;
}
