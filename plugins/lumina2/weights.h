// The names of published checkpoints. Weights of the DiT are called as the original checkpoint
// calls them.
#pragma once

#include "atelier/model_family.h"

namespace lumina2 {

// See ModelFamily::weight_map.
atelier::WeightMap dit_map(const atelier::Detection& part);

}  // namespace lumina2
