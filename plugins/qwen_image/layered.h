// Pictures in layers: what Qwen-Image-Layered makes of one picture, and Layered-Control.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "atelier/architecture.h"
#include "atelier/input.h"
#include "atelier/model.h"

namespace qwen_image {

inline constexpr const char *kLayerInput = "layer_input_image", *kLayerNumber = "layer_num",
                            *kNormalize = "cfg_normalize";
inline constexpr int64_t kMostLayers = 16;  // beside the picture of them all

// An entry of a conditioning, of any value: the guided velocity keeps each token's length.
inline constexpr const char* kKeepsLength = "keeps_length";

// Whether parts of a model make layers: its DiT does, or without one its VAE has transparency.
bool has_layers(std::span<const atelier::Detection> parts);
// Throws Error{kInvalidArgument} where DiT and VAE among the parts do not fit each other.
void check_layers(std::span<const atelier::Detection> parts);

// How many pictures are made where nothing is said, and their area: see ModelFamily.
atelier::MediaDefaults layered_defaults(std::string_view variant);
// See SigmaShift::function: the root of the tokens of the picture that is taken apart, which has
// the size of what is made, over those of 256 x 256 pixels.
double layered_shift(int64_t tokens, int64_t steps);

// As many pictures as layers and the picture of them all, and as large as the picture that is taken
// apart at the area of the variant. Throws Error{kInvalidArgument} for layers that are too many or
// too few, for a picture that is too long, and in generation for an empty prompt.
atelier::MediaTarget layered_target(const atelier::Inputs& inputs,
                                    const atelier::MediaTarget& asked, std::string_view variant);

// [4, H, W] in [-1, 1] over white: [3, H, W]. What has three channels stays as it is.
at::Tensor over_white(const at::Tensor& picture);

}  // namespace qwen_image
