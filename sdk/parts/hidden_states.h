// What models give of what stands between their layers.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/block.h"

namespace atelier::parts {

// How many layers stand in front of the last of a config's states.
template <class Config>
int64_t layers_of_states(const Config& config) {
  int64_t last = 0;
  for (const int64_t state : config.states) last = std::max(last, config.layers_before(state));
  return last;
}

// Runs all of `blocks`, the first of whose inputs goes through them and is left as it is behind the
// last one. Returns it behind as many of them as each of `behind` says.
template <class Layer>
Tensors hidden_states(const std::vector<std::unique_ptr<Layer>>& blocks, Tensors& inputs,
                      const std::vector<int64_t>& behind, BlockRunner& runner) {
  Tensors states(behind.size());
  for (int64_t run = 0;; ++run) {
    for (size_t i = 0; i < behind.size(); ++i) {
      if (behind[i] == run) states[i] = inputs[0];
    }
    if (run == std::ssize(blocks)) return states;
    inputs[0] = runner.run(*blocks[static_cast<size_t>(run)], inputs)[0];
  }
}

// The layers in front of each of a config's states.
template <class Config>
std::vector<int64_t> layers_before_states(const Config& config) {
  std::vector<int64_t> behind;
  for (const int64_t state : config.states) behind.push_back(config.layers_before(state));
  return behind;
}

// States side by side.
inline at::Tensor side_by_side(const Tensors& states) {
  return states.size() == 1 ? states.front() : at::cat(states, 1);
}

}  // namespace atelier::parts
