// Steps of the trainer on LibTorch's CUDA half: what the host waits for, and on which devices.
#include <set>
#include <string>

#include "host/train/ways_to_train.h"
#include "null_cuda/cuda_half.h"
#include "null_cuda/runtime.h"

namespace atelier::train {
namespace {

using test::StepBench;
using test::toy_step;
using test::TrainToy;
using test::Way;

// Calls that steps may wait in once those that measure are over.
std::set<std::string> waits_of(const Way& way) {
  if (way.optimizes_on_host)
    return {"cudaEventSynchronize", "cudaMemcpyAsync", "cudaStreamSynchronize"};
  return way.moves_activations ? std::set<std::string>{"cudaEventSynchronize"}
                               : std::set<std::string>();
}

}  // namespace

TEST_CASE("The trainer's steps wait for nothing, and stay on their device", "[null_cuda]") {
  for (const int device : {1, 0}) {
    for (const Way& way : test::ways_to_train()) {
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
          if (call.is_waiting && !waits_of(way).contains(call.name)) waits.insert(call.name);
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
