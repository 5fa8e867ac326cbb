// Layers of a model under the names, and cut as, a LoRA format's readers expect them.
#pragma once

#include <vector>

#include "host/lora/lora_writer.h"
#include "host/model/model_loader.h"

namespace atelier::lora {

// Gives every layer the name that the format's readers know it by. diffusers and diffsynth speak
// the family's spelling "diffusers", comfy and kohya its spelling "original"; where a family has no
// such spelling, layers keep their names. Names that are no layer of the model are kept too.
//
// A layer of the model that is several there is cut: they share `down`, and each has its rows of
// `up`. Several layers that are one there are joined: factors that share `down` keep their rank,
// others stand beside each other, and rows that nothing is added to are zeros. Additions are the
// same to the bit, but where layers of different scales are joined: their scale is then in `up`.
// DoRA with a length for each row is cut likewise, and joined where all rows have one.
//
// `layers` are named by their path in the model, or in any published spelling. Throws
// Error{kUnsupported} for other forms than two factors that would have to be cut or joined, and for
// layers that are joined along their columns.
std::vector<LayerWeights> respell(std::vector<LayerWeights> layers, model::LoadedModel& model,
                                  Format format);

}  // namespace atelier::lora
