// Ways to train a toy, which differ in what a step waits for.
#pragma once

#include <functional>
#include <vector>

#include "host/train/train_toy.h"

namespace atelier::test {

struct Way {
  const char* name;
  std::function<void(TrainToy& toy)> choose;
  model::Placement placement = {};
  int64_t learns = 0;              // steps that measure first
  bool moves_activations = false;  // to the host and back, whose copies later steps may wait for
  bool optimizes_on_host = false;  // where gradients are awaited, and the loss
};

inline const std::vector<Way>& ways_to_train() {
  const model::Placement on_host = {.offload = {{"dit", memory::Place::kHost}}, .prefetch = 0};
  const model::Placement on_disk = {.offload = {{"dit", memory::Place::kDisk}}, .prefetch = 0};
  const auto budget = [](const char* text) {
    return [text](TrainToy& toy) {
      toy.config.activation_budget = memory::parse_activation_budget(text);
    };
  };
  static const std::vector<Way> ways = {
      {"all weights", [](TrainToy&) {}},
      {"clipped", [](TrainToy& toy) { toy.config.max_grad_norm = 0.5; }},
      {"an adapter", [](TrainToy& toy) { toy.train_lora(); }},
      {"recomputed", [](TrainToy& toy) { toy.config.use_gradient_checkpointing = true; }},
      {"streamed from the host", [](TrainToy& toy) { toy.train_lora(); }, on_host},
      {"streamed from disk", [](TrainToy& toy) { toy.train_lora(); }, on_disk},
      {.name = "planned", .choose = budget("0.5"), .learns = 1},
      {.name = "offloaded",
       .choose =
           [budget](TrainToy& toy) {
             budget("0.3")(toy);
             toy.config.offloads_activations = true;
           },
       .learns = 1,
       .moves_activations = true},
      {.name = "optimized on the host",
       .choose = [](TrainToy& toy) { toy.config.offload.optimizer = true; },
       .optimizes_on_host = true}};
  return ways;
}

}  // namespace atelier::test
