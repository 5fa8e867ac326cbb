// The names of published checkpoints. Weights of this family's modules are called as diffusers
// calls them.
#pragma once

#include "atelier/model_family.h"

namespace qwen_image {

// See ModelFamily::weight_map.
atelier::WeightMap weight_map(const atelier::Detection& part);

}  // namespace qwen_image
