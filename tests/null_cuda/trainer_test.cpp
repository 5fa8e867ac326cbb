// Steps of the trainer on LibTorch's CUDA half: what the host waits for, and on which devices.
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/train/train_toy.h"
#include "null_cuda/cuda_half.h"
#include "null_cuda/runtime.h"

namespace atelier::train {
namespace {

using test::StepBench;
using test::toy_step;
using test::TrainToy;

// A way to train, and calls that steps may wait in once the first `learns` of them have measured.
struct Way {
  const char* name;
  std::function<void(TrainToy& toy)> choose;
  model::Placement placement = {};
  std::set<std::string> waits = {};
  int64_t learns = 0;
};

const std::vector<Way>& ways() {
  const model::Placement on_host = {.offload = {{"dit", memory::Place::kHost}}, .prefetch = 0};
  const model::Placement on_disk = {.offload = {{"dit", memory::Place::kDisk}}, .prefetch = 0};
  static const std::vector<Way> ways = {
      {"all weights", [](TrainToy&) {}},
      {"clipped", [](TrainToy& toy) { toy.config.max_grad_norm = 0.5; }},
      {"an adapter", [](TrainToy& toy) { toy.train_lora(); }},
      {"recomputed", [](TrainToy& toy) { toy.config.use_gradient_checkpointing = true; }},
      {"streamed from the host", [](TrainToy& toy) { toy.train_lora(); }, on_host},
      {"streamed from disk", [](TrainToy& toy) { toy.train_lora(); }, on_disk},
      {"planned",
       [](TrainToy& toy) { toy.config.activation_budget = memory::parse_activation_budget("0.5"); },
       {},
       {},
       1},
      {"offloaded",
       [](TrainToy& toy) {
         toy.config.activation_budget = memory::parse_activation_budget("0.3");
         toy.config.offloads_activations = true;
       },
       {},
       {"cudaEventSynchronize"},
       1},
      // Gradients are awaited there, and the loss.
      {"optimized on the host",
       [](TrainToy& toy) { toy.config.offload.optimizer = true; },
       {},
       {"cudaEventSynchronize", "cudaMemcpyAsync", "cudaStreamSynchronize"}}};
  return ways;
}

}  // namespace

TEST_CASE("The trainer's steps wait for nothing, and stay on their device", "[null_cuda]") {
  for (const int device : {1, 0}) {
    for (const Way& way : ways()) {
      TrainToy toy;
      way.choose(toy);
      toy.open("cuda:" + std::to_string(device), "float32", way.placement);
      StepBench bench(toy);
      for (int64_t i = 0; i < 4; ++i) {
        const StepData data = toy_step(3, 2, 100 + 10 * static_cast<int>(i));
        null_cuda::begin_log();
        bench.step.run(data, i);
        std::set<std::string> waits, elsewhere;
        for (const null_cuda::Call& call : null_cuda::end_log()) {
          if (call.is_waiting && !way.waits.contains(call.name)) waits.insert(call.name);
          if (call.device != device) elsewhere.insert(call.name);
        }
        CAPTURE(device, way.name, i);
        // Streams and handles are made in the first step.
        if (i > way.learns) CHECK(waits == std::set<std::string>{});
        CHECK(elsewhere == std::set<std::string>{});
        null_cuda::hold_streams();  // later steps run when somebody waits
      }
      null_cuda::release_streams();
    }
  }
  CHECK(null_cuda::copies_from_nowhere() == 0);
}

}  // namespace atelier::train
