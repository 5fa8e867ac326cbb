// What the user left open, filled from the inputs and the model.
#pragma once

#include <cstdint>

#include "atelier/model.h"

#include "host/model/model_loader.h"
#include "host/order/settings.h"

namespace atelier::generate {

// Fills frames, height, width and frame rate where the user left them open: as the input images
// say, if the model goes by them (see Model::target), or the clip that sampling begins from; else
// as the model is for. Reads headers of images and clips alone. Throws as Model::target, images
// that the model cannot take among it, and names the place of the settings.
void fill_target(order::Settings& settings, const model::LoadedModel& model,
                 const order::Origin& place = {});

// Takes what the model's folder, as diffusers saves it, says of sampling and the settings leave
// open: under --schedule diffusers the solver and the shift of its scheduler. Throws
// Error{kUnsupported} for a scheduler whose levels are not made here.
void fill_from_folder(order::Settings& settings, const model::LoadedModel& model);

// The most frames that a model can make of so many, at least one.
int64_t largest_clip(int64_t frames, const LatentSpec& spec);

}  // namespace atelier::generate
