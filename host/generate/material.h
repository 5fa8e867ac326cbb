// What trajectories are made of: a request, or a piece of one, and its encodings.
#pragma once

#include <ATen/core/Tensor.h>

#include "atelier/conditioning.h"

#include "host/generate/image_request.h"

namespace atelier::generate {

// With the prompt, and without it: what guidance moves away from, empty where no step is guided.
struct Conditionings {
  Conditioning with, without;
};

struct Material {
  Request request;
  Conditionings cond;
  at::Tensor clean;  // float32 [C, T, H, W]: latents that sampling begins from; may be undefined
};

// A piece that is being made: what runs beside it, and the frames that it shares with the one
// before, see EncodeInputs::before_CTHW.
struct PieceInputs {
  Piece piece;
  Inputs beside;
  at::Tensor before_CTHW;
};

}  // namespace atelier::generate
