// The names of published checkpoints. Weights of this family's modules are called as diffusers and
// transformers call them.
#pragma once

#include "atelier/model_family.h"

namespace qwen_image {

// See ModelFamily::weight_map.
atelier::WeightMap dit_map(const atelier::Detection& part);
atelier::WeightMap text_encoder_map(const atelier::Detection& part);

}  // namespace qwen_image
