// Calls of a model that tests of several families make.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/model.h"

namespace atelier::test {

// Stage "text" of a prompt.
inline EncodeInputs prompt_inputs(const std::string& prompt) {
  return {.stage = "text", .values = {{"prompt", prompt}}};
}

// Stage "latents" of pixels [3, T, H, W].
inline at::Tensor encode_latents(Model& model, const at::Tensor& pixels, BlockRunner& runner) {
  return model.encode({.stage = "latents", .values = {{"image", pixels}}}, runner).at("latents");
}

// All frames at once.
inline at::Tensor decode(Model& model, const at::Tensor& latents_BCTHW, BlockRunner& runner) {
  std::vector<at::Tensor> frames;
  model.decode(latents_BCTHW, runner, [&](const at::Tensor& pixels) { frames.push_back(pixels); });
  return at::cat(frames, 2);
}

}  // namespace atelier::test
