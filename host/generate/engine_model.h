// A model as the engine takes it: its weights come and go.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "atelier/model.h"

#include "host/generate/picture_ranks.h"
#include "host/generate/request_loras.h"
#include "host/generate/tiling.h"
#include "host/model/model_loader.h"
#include "host/model/stages.h"

namespace atelier::generate {

struct EngineModel {
  Model& model;
  model::Stages stages = {};
  at::Device device = at::kCPU;
  at::ScalarType decoder_dtype = at::kFloat;  // of what decodes
  // Each does nothing when there is nothing to do.
  std::function<void(std::string_view component)> load = {}, unload = {};
  // See model::hand_over(). Empty: nothing is ahead of its time.
  std::function<void(std::string_view from, std::string_view to)> hand_over = {};
  BlockRunner* runner = nullptr;  // of the model's blocks, and outlives this; null: in place
  std::set<std::string, std::less<>> stays = {};  // components that do not leave; see Residents
  PictureRanks ranks = {};                        // all of them run the same requests
  RequestLoras* loras = nullptr;                  // outlives this; null: no request has any
  // Whether all of a component's weights are where they are used. Empty: it is not known.
  std::function<bool(std::string_view component)> is_resident = {};
  // Is told what is done from now on: "encode", "denoise" with the step's number, "decode".
  std::function<void(std::string_view phase, int64_t number)> on_phase = {};
  // What a dry run makes only once of what is alike: steps and pieces that are left out, and what
  // the VAE is called through with a tile or a whole image. Empty: everything is made.
  std::function<bool(int64_t step)> makes_step = {};
  std::function<bool(size_t piece)> makes_piece = {};
  std::function<at::Tensor(const TileFunction& run, const at::Tensor& in)> through_vae = {};

  // Whether every denoiser stays.
  bool keeps_denoisers() const;
  // Whether every component that has weights stays.
  bool keeps_all() const;
};

// With the components that the model was made with; they come and go by themselves. `model`
// outlives it.
EngineModel engine_model_of(model::LoadedModel& model);

}  // namespace atelier::generate
